// Runs the `spillway` program as a user does, and looks at what it answers.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace spillway::testing {

struct Answer {
  int exit_code = -1;  ///< -1: ended by a signal
  std::string out, err;
  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(out); }
};

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_all(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A child process with its output in files of `directory`.
class Program {
 public:
  Program(const std::filesystem::path& directory, std::vector<std::string> arguments)
      : out_(directory / "stdout.txt"), err_(directory / "stderr.txt") {
    arguments.insert(arguments.begin(), SPILLWAY_PROGRAM);
    pid_ = ::fork();
    if (pid_ != 0) return;
    redirect(out_, STDOUT_FILENO);
    redirect(err_, STDERR_FILENO);
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    ::execv(raw[0], raw.data());
    std::_Exit(127);
  }

  void signal(int number) const { ::kill(pid_, number); }

  Answer wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(out_), read_all(err_)};
  }

  [[nodiscard]] const std::filesystem::path& err() const { return err_; }

 private:
  static void redirect(const std::filesystem::path& path, int descriptor) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(file, descriptor);
  }

  std::filesystem::path out_, err_;
  pid_t pid_ = -1;
};

/// Complete lines of a file; none if it is not there.
inline std::size_t lines_of(const std::filesystem::path& path) {
  const std::string text = read_all(path);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// Waits until `path` has at least `lines` lines; false after `longest`.
inline bool wait_for_lines(const std::filesystem::path& path, std::size_t lines,
                           std::chrono::duration<double> longest = std::chrono::minutes(1)) {
  const auto deadline = std::chrono::steady_clock::now() + longest;
  while (std::chrono::steady_clock::now() < deadline) {
    if (lines_of(path) >= lines) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

}  // namespace spillway::testing
