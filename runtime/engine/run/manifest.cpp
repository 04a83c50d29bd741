// RUN/manifest.json.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/sealed_json.hpp"

namespace spillway::engine {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<plan::Sharding, std::string_view>, 3> kShardings{
    {{plan::Sharding::none, "none"},
     {plan::Sharding::state, "state"},
     {plan::Sharding::parameters, "parameters"}}};

/// Reads the entries of one manifest; every refusal names the file and the key.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : path_(path), document_(read_sealed_json(path)) {}

  [[nodiscard]] RunId id(const char* key) const { return parse(key, at(key)); }
  [[nodiscard]] std::optional<RunId> id_if_any(const char* key) const {
    if (!document_.contains(key)) return std::nullopt;
    return id(key);
  }
  [[nodiscard]] std::vector<RunId> ids(const char* key) const {
    std::vector<RunId> result;
    for (const json& entry : list(key)) result.push_back(parse(key, entry));
    return result;
  }
  [[nodiscard]] std::vector<std::filesystem::path> paths(const char* key) const {
    std::vector<std::filesystem::path> result;
    for (const json& entry : list(key)) result.emplace_back(text(key, entry));
    expect(!result.empty(), key);
    return result;
  }
  [[nodiscard]] std::filesystem::path path(const char* key) const { return text(key, at(key)); }
  [[nodiscard]] bool flag(const char* key) const {
    expect(at(key).is_boolean(), key);
    return at(key).get<bool>();
  }
  [[nodiscard]] std::optional<std::uint64_t> number(const char* key) const {
    if (!document_.contains(key)) return std::nullopt;
    expect(at(key).is_number_unsigned(), key);
    return at(key).get<std::uint64_t>();
  }
  /// Returns that of the only rank where the manifest says nothing of ranks.
  [[nodiscard]] RankPart part() const {
    if (!document_.contains("ranks")) return {};
    constexpr std::uint64_t kMost = 0xffff'ffff;
    const std::uint64_t ranks = number("ranks").value_or(0);
    const std::uint64_t rank = number("rank").value_or(ranks);
    expect(ranks > 0 && ranks <= kMost, "ranks");
    expect(rank < ranks, "rank");
    const std::string name = text("sharding", at("sharding"));
    const auto* const known =
        std::ranges::find(kShardings, name, &decltype(kShardings)::value_type::second);
    expect(known != kShardings.end(), "sharding");
    return {.ranks = static_cast<std::uint32_t>(ranks),
            .rank = static_cast<std::uint32_t>(rank),
            .sharding = known->first};
  }

 private:
  void expect(bool condition, const char* key) const {
    check(condition, ErrorCode::corrupt_data,
          fmt::format("{}: \"{}\" is not what a run writes there", path_.string(), key));
  }
  [[nodiscard]] const json& at(const char* key) const {
    expect(document_.contains(key), key);
    return document_[key];
  }
  [[nodiscard]] const json& list(const char* key) const {
    expect(at(key).is_array(), key);
    return at(key);
  }
  [[nodiscard]] std::string text(const char* key, const json& entry) const {
    expect(entry.is_string(), key);
    return entry.get<std::string>();
  }
  [[nodiscard]] RunId parse(const char* key, const json& entry) const {
    const auto id = parse_run_id(text(key, entry));
    expect(id.has_value(), key);
    return *id;
  }

  std::filesystem::path path_;
  json document_;
};

}  // namespace

std::filesystem::path rank_directory(const std::filesystem::path& job, std::size_t rank) {
  return rank == 0 ? job : job / fmt::format("rank-{:04}", rank);
}

bool RunManifest::has_been(const RunId& other) const {
  return id == other || std::ranges::find(earlier_ids, other) != earlier_ids.end();
}

bool RunManifest::holds_its_state() const {
  return std::ranges::all_of(state, [](const auto& path) { return path.is_relative(); });
}

bool RunManifest::leads(const RunId& named) const {
  return named == RunId{} || named == id || named == renamed;
}

void RunDirectory::write_manifest(const RunManifest& manifest) const {
  json document{{"id", to_text(manifest.id)},
                {"earlier_ids", json::array()},
                {"state_id", to_text(manifest.state_id)},
                {"state", json::array()},
                {"committed", manifest.committed},
                {"directory", manifest.directory.string()}};
  for (const RunId& id : manifest.earlier_ids) document["earlier_ids"].push_back(to_text(id));
  for (const auto& path : manifest.state) document["state"].push_back(path.string());
  if (manifest.kept) document["kept"] = *manifest.kept;
  if (manifest.part.ranks > 1) {
    document["ranks"] = manifest.part.ranks;
    document["rank"] = manifest.part.rank;
    document["sharding"] = kShardings.at(static_cast<std::size_t>(manifest.part.sharding)).second;
  }
  if (manifest.job != RunId{}) document["job"] = to_text(manifest.job);
  if (manifest.renamed) document["renamed"] = to_text(*manifest.renamed);
  write_sealed_json(this->manifest(), document);
}

RunManifest RunDirectory::read_manifest() const {
  const Reader reader(manifest());
  return {.id = reader.id("id"),
          .earlier_ids = reader.ids("earlier_ids"),
          .state_id = reader.id("state_id"),
          .state = reader.paths("state"),
          .committed = reader.flag("committed"),
          .directory = reader.path("directory"),
          .kept = reader.number("kept"),
          .part = reader.part(),
          .job = reader.id_if_any("job").value_or(RunId{}),
          .renamed = reader.id_if_any("renamed")};
}

RunManifest RunDirectory::read_rank(const RunManifest& first, std::uint32_t rank) const {
  const RunDirectory other(rank_directory(root_, rank));
  check(other.exists(), ErrorCode::corrupt_data,
        fmt::format("{} is not there, or has no manifest.json, and it holds what rank {} of {} "
                    "has of the state; put it back",
                    other.root().string(), rank, first.part.ranks));
  RunManifest manifest = other.read_manifest();
  check(manifest.part.rank == rank && first.leads(manifest.job), ErrorCode::corrupt_data,
        fmt::format("{} is not of rank {} of the run in {}: it is of rank {} of run {}, and that "
                    "is run {}; put back the folder that belongs there",
                    other.root().string(), rank, root_.string(), manifest.part.rank,
                    to_text(manifest.job), to_text(first.id)));
  return manifest;
}

RunDirectory::Files RunDirectory::read() const {
  Files files{.manifest = read_manifest(), .config = read_config()};
  check(files.manifest.has_been(files.config.id), ErrorCode::corrupt_data,
        fmt::format("{} is of run {} and {} of run {}; put back the one that belongs to the other",
                    config().string(), to_text(files.config.id), manifest().string(),
                    to_text(files.manifest.id)));
  return files;
}

std::filesystem::path RunDirectory::in_manifest(const std::filesystem::path& directory) const {
  const auto path = std::filesystem::weakly_canonical(directory);
  const auto relative = path.lexically_relative(std::filesystem::weakly_canonical(root_));
  return !relative.empty() && *relative.begin() != ".." ? relative : path;
}

std::vector<std::filesystem::path> RunDirectory::state_directories(
    const RunManifest& manifest) const {
  std::vector<std::filesystem::path> directories;
  directories.reserve(manifest.state.size());
  // An absolute path stands for itself.
  for (const auto& path : manifest.state) directories.push_back(root_ / path);
  return directories;
}

}  // namespace spillway::engine
