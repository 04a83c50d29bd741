// What other processes do on this process's cores while it measures them. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace spillway::engine {

/// The load of other processes since construction, on the cores that the calling thread may use.
class OtherLoad {
 public:
  /// Begins to watch. `stat`: a file in the form of /proc/stat.
  explicit OtherLoad(std::filesystem::path stat = "/proc/stat");

  /// Number of cores that others kept busy, on average. 0 where the kernel does not tell, and in
  /// less than a tenth of a second, for which its clock is too coarse.
  [[nodiscard]] double cores() const;

  /// Returns a line for the user if they kept a quarter of the cores busy, else nothing.
  [[nodiscard]] std::optional<std::string> note() const;

 private:
  std::filesystem::path stat_;
  std::optional<std::int64_t> begin_;  ///< in ticks
  std::chrono::steady_clock::time_point began_;
};

}  // namespace spillway::engine
