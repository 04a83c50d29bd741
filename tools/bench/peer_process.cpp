#include "tools/bench/peer_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "runtime/base/error.hpp"

namespace spillway::bench {
namespace {

std::array<int, 2> open_pipe() {
  std::array<int, 2> ends{};
  check(::pipe2(ends.data(), O_CLOEXEC) == 0, ErrorCode::io_error, "no pipe to a peer process");
  return ends;
}

}  // namespace

PeerProcess::PeerProcess(std::vector<std::string> command)
    : name_(fmt::format("{}", fmt::join(command, " "))) {
  const std::array<int, 2> input = open_pipe();
  const std::array<int, 2> output = open_pipe();
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  child_ = ::fork();
  if (child_ == 0) {
    ::dup2(input[0], STDIN_FILENO);
    ::dup2(output[1], STDOUT_FILENO);
    ::execvp(arguments[0], arguments.data());
    constexpr int kNoProgram = 127;
    std::_Exit(kNoProgram);  // the parent sees the pipe end
  }
  const int failure = child_ < 0 ? errno : 0;
  ::close(input[0]);
  ::close(output[1]);
  to_ = ::fdopen(input[1], "w");
  from_ = ::fdopen(output[0], "r");
  if (failure != 0) {
    std::fclose(to_);
    std::fclose(from_);
    throw Error(ErrorCode::io_error, fmt::format("cannot run {}", name_), failure);
  }
}

PeerProcess::~PeerProcess() {
  std::fclose(to_);
  std::fclose(from_);
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) continue;
}

nlohmann::json PeerProcess::read() {
  std::string line;
  for (int c = std::fgetc(from_); c != '\n'; c = std::fgetc(from_)) {
    check(c != EOF, ErrorCode::io_error,
          fmt::format("{} cannot be run, or ended early; what it said is above", name_));
    line.push_back(static_cast<char>(c));
  }
  return nlohmann::json::parse(line);
}

void PeerProcess::request() {
  std::fputs("go\n", to_);
  check(std::fflush(to_) == 0, ErrorCode::io_error, fmt::format("{} does not listen", name_));
}

}  // namespace spillway::bench
