// PeerProcess: a script that runs other implementations side by side, one repetition a request.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway::bench {

/// Owns a child process and the two pipes to it. Both sides speak lines of JSON: the child says one
/// when it is ready, then one for each line that it reads; it ends when its input ends.
class PeerProcess {
 public:
  /// Starts `command` (looked up in PATH). Throws `Error{io_error}`.
  explicit PeerProcess(std::vector<std::string> command);
  /// Ends the child's input and waits for it.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Reads the next line. Throws `Error{io_error}` if the child is gone, which has then said why on
  /// stderr.
  [[nodiscard]] nlohmann::json read();
  void request();

 private:
  std::string name_;
  pid_t child_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

}  // namespace spillway::bench
