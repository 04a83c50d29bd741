#include "runtime/engine/machine/other_load.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/times.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"

namespace spillway::engine {
namespace {

constexpr Bytes kStatLimit = 4_MiB;
constexpr std::chrono::milliseconds kLeastTime{100};
constexpr double kWorthTelling = 0.25;

cpu_set_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

/// Ticks of a line "cpuN user nice system idle iowait irq softirq steal ..." (proc(5)) in which the
/// core was busy; none: N is not usable.
std::int64_t busy_ticks(const std::string& line, const cpu_set_t& usable) {
  std::istringstream words(line);
  std::string name;
  words >> name;
  if (!name.starts_with("cpu") || name.size() == 3) return 0;
  const auto core = static_cast<std::size_t>(std::stoul(name.substr(3)));
  if (core >= CPU_SETSIZE || !CPU_ISSET(core, &usable)) return 0;
  std::int64_t user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  words >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  return user + nice + system + irq + soft + steal;
}

/// Ticks in which the usable cores were busy for others than this process; none: nobody tells.
std::optional<std::int64_t> ticks_of_others(const std::filesystem::path& stat) {
  std::istringstream lines;
  try {
    lines.str(read_text_file(stat, kStatLimit));
  } catch (const Error&) {
    return std::nullopt;  // a measurement does without
  }
  const cpu_set_t usable = usable_cores();
  tms own{};
  times(&own);
  std::int64_t busy = 0;
  for (std::string line; std::getline(lines, line);) busy += busy_ticks(line, usable);
  return busy - own.tms_utime - own.tms_stime;
}

}  // namespace

OtherLoad::OtherLoad(std::filesystem::path stat)
    : stat_(std::move(stat)),
      begin_(ticks_of_others(stat_)),
      began_(std::chrono::steady_clock::now()) {}

double OtherLoad::cores() const {
  const std::optional<std::int64_t> end = ticks_of_others(stat_);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began_;
  if (!begin_ || !end || taken < kLeastTime) return 0;
  const auto ticks = static_cast<double>(std::max<std::int64_t>(*end - *begin_, 0));
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) / taken.count();
}

std::optional<std::string> OtherLoad::note() const {
  const cpu_set_t usable = usable_cores();
  const int all = CPU_COUNT(&usable);
  const double busy = cores();
  if (busy < kWorthTelling * all) return std::nullopt;
  return fmt::format(
      "other processes kept {:.1f} of {} cores busy while this machine was measured: predicted "
      "times may be off",
      std::min<double>(busy, all), all);
}

}  // namespace spillway::engine
