#include "tools/cli/hub.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"

namespace spillway::cli {
namespace {

namespace fs = std::filesystem;

/// A model of the hub as users write it.
struct HubName {
  std::string owner;
  std::string model;
  std::string revision = "main";

  [[nodiscard]] std::string folder() const { return fmt::format("models--{}--{}", owner, model); }
  [[nodiscard]] std::string identity() const { return fmt::format("{}/{}", owner, model); }
};

bool is_word(std::string_view text) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !text.empty() && text.front() != '.' && std::ranges::all_of(text, allowed);
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const auto at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    text = text.substr(0, at);
  }
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  name.owner = text.substr(0, slash);
  name.model = text.substr(slash + 1);
  if (name.model.ends_with(".json")) return std::nullopt;  // a file that somebody mistyped
  const bool plain = is_word(name.owner) && is_word(name.model) && is_word(name.revision);
  return plain ? std::optional(name) : std::nullopt;
}

std::optional<fs::path> directory_in(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? std::optional<fs::path>(value) : std::nullopt;
}

/// Where huggingface_hub keeps what it has downloaded, by its own order of variables.
fs::path hub_cache() {
  if (const auto cache = directory_in("HF_HUB_CACHE")) return *cache;
  if (const auto cache = directory_in("HUGGINGFACE_HUB_CACHE")) return *cache;
  if (const auto home = directory_in("HF_HOME")) return *home / "hub";
  if (const auto cache = directory_in("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  return directory_in("HOME").value_or("/") / ".cache" / "huggingface" / "hub";
}

/// The snapshot that the cache has of a revision: a branch or tag by its reference, or a commit.
fs::path snapshot_of(const fs::path& folder, const std::string& revision) {
  constexpr Bytes kCommit = 1_KiB;
  const fs::path reference = folder / "refs" / revision;
  std::string commit = revision;
  if (fs::exists(reference)) commit = read_text_file(reference, kCommit);
  commit.erase(std::remove_if(commit.begin(), commit.end(),
                              [](unsigned char c) { return std::isspace(c) != 0; }),
               commit.end());
  return folder / "snapshots" / commit;
}

}  // namespace

fs::path find_checkpoint(const fs::path& name) {
  if (fs::exists(fs::symlink_status(name))) return name;
  const std::optional<HubName> hub = parse_hub_name(name.string());
  if (!hub) return name;
  fs::path snapshot = snapshot_of(hub_cache() / hub->folder(), hub->revision);
  if (is_there(snapshot / "config.json")) return snapshot;
  const std::string revision =
      hub->revision == "main" ? std::string() : fmt::format(" --revision {}", hub->revision);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is no path here, and the Hugging Face cache {} has no model of that "
                          "name; if the hub has it, download it with: hf download {}{}",
                          name.string(), hub_cache().string(), hub->identity(), revision));
}

}  // namespace spillway::cli
