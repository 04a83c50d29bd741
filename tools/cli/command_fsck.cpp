// `spillway fsck RUN`: checks the files of a run and every byte of its committed state.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nvme_swap/fsck.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/run/contents.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/state/saved_state.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/status_line.hpp"

namespace spillway::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using nvme_swap::FsckReport;

/// How far the check is, on a terminal; nothing elsewhere.
class ProgressLine {
 public:
  ~ProgressLine() { line_.clear(); }
  void show(Bytes done, Bytes total) {
    const auto now = Clock::now();
    if (!line_.on_terminal() || now - last_ < std::chrono::milliseconds{100}) return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const Bytes rate{
        static_cast<std::uint64_t>(static_cast<double>(done.value()) / std::max(seconds, 1e-3))};
    const std::array fields{
        StatusField{fmt::format("checked {} of {}", format_bytes(done), format_bytes(total)), 0},
        StatusField{fmt::format("at {}/s", format_bytes(rate)), 1}};
    line_.show(fields);
  }

 private:
  using Clock = std::chrono::steady_clock;
  StatusLine line_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_{};
};

ordered_json json_of(const std::vector<nvme_swap::FsckFinding>& findings) {
  ordered_json list = ordered_json::array();
  for (const auto& finding : findings) {
    list.push_back({{"file", finding.file.string()}, {"what", finding.what}});
  }
  return list;
}

ordered_json json_of(const std::string& name, const FsckReport& report) {
  ordered_json document{{"name", name}, {"files", ordered_json::array()}};
  for (const fs::path& file : report.files) document["files"].push_back(file.string());
  document["committed_step"] =
      report.step ? ordered_json(report.step->value()) : ordered_json(nullptr);
  document["commits"] = report.generation;
  document["slots"] = report.slots;
  document["tiles"] = report.tiles;
  document["tiles_checked"] = report.tiles_checked;
  document["bytes_checked"] = report.bytes_checked.value();
  document["seconds"] = report.seconds;
  document["engine"] = report.engine;
  document["in_use"] = report.in_use;
  document["resumable"] = report.resumable;
  document["damage"] = json_of(report.damage);
  document["notes"] = json_of(report.notes);
  return document;
}

void print(const std::string& name, const FsckReport& report) {
  answer("store '{}' in {}\n", name, report.files.front().parent_path().string());
  if (report.tiles_checked > 0) {
    answer("  {} of {} tiles hold state; {} checked in {:.1f} s ({:.2f} GB/s)\n",
           report.tiles_checked, report.tiles, format_bytes(report.bytes_checked), report.seconds,
           static_cast<double>(report.bytes_checked.value()) / 1e9 / report.seconds);
  }
  for (const auto& finding : report.damage) {
    answer("  DAMAGED {}: {}\n", finding.file.filename().string(), finding.what);
  }
  for (const auto& finding : report.notes) {
    answer("  note {}: {}\n", finding.file.filename().string(), finding.what);
  }
  if (report.damage.empty()) {
    answer("  sound{}\n",
           report.step ? fmt::format(": committed step {}", report.step->value()) : "");
  } else if (report.resumable) {
    answer(
        "  the committed state{} is whole: the run can be resumed, and the next commit "
        "repairs the record\n",
        report.step ? fmt::format(" of step {}", report.step->value()) : "");
  } else {
    answer(
        "  the committed state is lost: restore the run from a kept checkpoint or start it "
        "again\n");
  }
}

/// Checks, of a store that a process is using or that may only be read, the newest commit alone.
FsckReport check_store(nvme_swap::StoreOptions options) {
  ProgressLine line;
  const auto show = [&line](Bytes done, Bytes total) { line.show(done, total); };
  options.lock_patience = {};
  try {
    return nvme_swap::check_store(options, show);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::busy && !nvme_swap::may_not_write(error)) throw;
    return nvme_swap::check_store_in_use(options, show);
  }
}

void add_report(ordered_json& document, const std::string& name, const FsckReport& report,
                bool json) {
  document["stores"].push_back(json_of(name, report));
  if (!report.damage.empty()) document["sound"] = false;
  if (!json) print(name, report);
}

/// The manifest and the configuration of a run, and its stores.
ordered_json check_run(const fs::path& run, bool json) {
  const engine::RunDirectory directory(run);
  engine::check_is_run(directory);
  const engine::RunManifest manifest = directory.read().manifest;
  const std::vector<fs::path> directories = directory.state_directories(manifest);
  check(fs::is_directory(directories.front()), ErrorCode::corrupt_data,
        fmt::format("{} names {}, which is not there", directory.manifest().string(),
                    directories.front().string()));
  const std::vector<std::string> names = nvme_swap::stores_in(directories.front());
  check(!names.empty(), ErrorCode::corrupt_data,
        fmt::format("{} has no swap files", directories.front().string()));
  ordered_json document{{"run", run.string()},
                        {"id", to_text(manifest.id)},
                        {"sound", true},
                        {"stores", ordered_json::array()},
                        {"scratch", ordered_json::array()}};
  for (const std::string& name : names) {
    nvme_swap::StoreOptions options;
    if (name != options.name) {
      document["scratch"].push_back(name);
      if (!json)
        answer(
            "scratch file '{}': in use, or left by a process that was killed; the "
            "next start removes it\n",
            name);
      continue;
    }
    options.directories = directories;
    options.owner = manifest.state_id;
    add_report(document, name, check_store(std::move(options)), json);
  }
  return document;
}

nvme_swap::StoreOptions store_of(const engine::RunDirectory& run) {
  return engine::store_of(run, run.read_manifest());
}

/// Returns the step that a check has found; nothing if there is none.
std::optional<std::uint64_t> step_of(const ordered_json& run) {
  if (run["stores"].empty() || run["stores"][0]["committed_step"].is_null()) return std::nullopt;
  return run["stores"][0]["committed_step"].get<std::uint64_t>();
}

/// Checks the least of the ranks' steps, from which a resume goes on, in the stores of those that
/// are ahead of it. Ranks that a process trains are always about to be at one step.
void check_least_step(std::span<ordered_json> ranks, bool json) {
  std::vector<std::uint64_t> steps;
  for (const ordered_json& rank : ranks) {
    const auto step = step_of(rank);
    if (!step || rank["stores"][0]["in_use"].get<bool>()) return;
    steps.push_back(*step);
  }
  const std::uint64_t least = *std::ranges::min_element(steps);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (steps[i] == least) continue;
    const engine::RunDirectory run(ranks[i]["run"].get<std::string>());
    ProgressLine line;
    const auto show = [&line](Bytes done, Bytes total) { line.show(done, total); };
    const FsckReport report = nvme_swap::check_commit(store_of(run), StepIndex{least}, show);
    add_report(ranks[i], nvme_swap::StoreOptions{}.name, report, json);
  }
}

/// Returns how many ranks the commit of the first one names; 1 without a commit.
std::uint32_t ranks_of(const ordered_json& first, const fs::path& run) {
  return step_of(first) ? engine::saved_ranks(store_of(engine::RunDirectory(run))) : 1;
}

/// The run directories of all ranks, each as a run.
ordered_json check_ranks(const fs::path& run, bool json) {
  std::vector<ordered_json> runs{check_run(run, json)};
  const std::uint32_t ranks = ranks_of(runs.front(), run);
  const engine::RunDirectory first(run);
  const engine::RunManifest manifest = first.read_manifest();
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    const fs::path directory = engine::rank_directory(run, rank);
    static_cast<void>(first.read_rank(manifest, rank));
    if (!json) answer("rank {} of {}: {}\n", rank, ranks, directory.string());
    runs.push_back(check_run(directory, json));
  }
  check_least_step(runs, json);
  ordered_json document = std::move(runs.front());
  for (std::size_t rank = 1; rank < runs.size(); ++rank) {
    if (!runs[rank]["sound"].get<bool>()) document["sound"] = false;
    document["ranks"].push_back(std::move(runs[rank]));
  }
  return document;
}

}  // namespace

void add_fsck(Command app, Session& session) {
  auto run = std::make_shared<fs::path>();
  Command command =
      add_command(app, session, "fsck",
                  "Checks a run's files and every byte of its committed state", [run, &session] {
                    ordered_json document = check_ranks(*run, session.json);
                    if (!document["sound"].get<bool>()) session.exit_code = 1;
                    return document;
                  });
  command
      .add_option("run", *run,
                  "This run is checked; while a process trains it, its newest commit is")
      .required();
}

}  // namespace spillway::cli
