#include "tools/bench/nvme_fio.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::bench {
namespace {

using nvme_swap::AccessPattern;

struct Output {
  int status;
  std::string text;
};

/// `command` is made of our own numbers and paths under /proc; no user's text reaches the shell.
Output run_command(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw_errno(errno, "run " + command);
  Output output{};
  std::array<char, 4096> part{};
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe)) {
    output.text.append(part.data(), got);
  }
  const int status = ::pclose(pipe);
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

/// What runs together: one job, or for mixed traffic also a reader and a writer apart, each with
/// half of the file and of the depth.
std::vector<std::string> jobs(const nvme_swap::DriveFile& file, AccessPattern pattern,
                              std::size_t depth) {
  const std::uint64_t size = file.bytes().value();
  const auto job = [](std::string_view rw, std::uint64_t offset, std::uint64_t bytes,
                      std::size_t job_depth) {
    return fmt::format("--name=spillway --rw={} --offset={} --size={} --iodepth={}", rw, offset,
                       bytes, job_depth);
  };
  if (pattern != AccessPattern::mixed) return {job(name_of(pattern), 0, size, depth)};
  return {job("rw", 0, size, depth), job("read", 0, size / 2, (depth + 1) / 2) + " " +
                                         job("write", size / 2, size / 2, (depth + 1) / 2)};
}

FioResult parse(const std::string& text) {
  // Notes may precede the document.
  const std::size_t begin = text.find('{');
  const auto document =
      nlohmann::json::parse(begin == std::string::npos ? text : text.substr(begin), nullptr, false);
  check(document.is_object() && document.contains("jobs"), ErrorCode::internal,
        fmt::format("fio's output is not what version 3 prints: {}", text.substr(0, 400)));
  FioResult result;
  double bytes = 0;
  double cpu = 0;
  for (const auto& job : document["jobs"]) {
    double milliseconds = 0;
    for (const char* direction : {"read", "write"}) {
      result.gigabytes_per_second += job[direction]["bw_bytes"].get<double>() / 1e9;
      bytes += job[direction]["io_bytes"].get<double>();
      milliseconds = std::max(milliseconds, job[direction]["runtime"].get<double>());
    }
    cpu += (job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>()) / 100 * milliseconds;
  }
  result.cpu_milliseconds_per_gibibyte = cpu / (bytes / (1U << 30));
  return result;
}

}  // namespace

std::optional<std::string> fio_version() {
  Output output = run_command("fio --version 2>/dev/null");
  if (output.status != 0) return std::nullopt;
  while (!output.text.empty() && output.text.back() == '\n') output.text.pop_back();
  return output.text;
}

FioResult run_fio(const nvme_swap::DriveFile& file, AccessPattern pattern, std::size_t depth,
                  Bytes block, std::chrono::milliseconds duration) {
  FioResult best;
  for (const std::string& job : jobs(file, pattern, depth)) {
    Output output{};
    for (const int registered : {1, 0}) {
      // Its content is not checked, so it need not be made; the time of its calls is not asked for.
      output = run_command(
          fmt::format("fio --filename={} --bs={} --ioengine=io_uring --direct={} --registerfiles=1 "
                      "--fixedbufs={} --runtime={}ms --time_based --overwrite=1 --fallocate=none "
                      "--allow_file_create=0 --scramble_buffers=0 --disable_lat=1 --disable_clat=1 "
                      "--disable_slat=1 --output-format=json {} 2>&1",
                      file.path_for_others(), block.value(), file.direct() ? 1 : 0, registered,
                      duration.count(), job));
      if (output.status == 0) break;
    }
    check(output.status == 0, ErrorCode::internal, "fio failed: " + output.text.substr(0, 800));
    const FioResult result = parse(output.text);
    if (result.gigabytes_per_second > best.gigabytes_per_second) best = result;
  }
  return best;
}

}  // namespace spillway::bench
