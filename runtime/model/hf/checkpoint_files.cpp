#include "runtime/model/hf/checkpoint_files.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"

namespace spillway::model {
namespace {

using Files = std::vector<std::unique_ptr<SafetensorsFile>>;

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr Bytes kMaxIndex{kMaxSafetensorsHeader};

/// Refuses a file name of the index that is no plain name in the checkpoint's directory.
void check_shard_name(const std::string& name, const std::string& origin) {
  const bool plain = !name.empty() && name.find('/') == std::string::npos &&
                     name.find('\0') == std::string::npos && !name.starts_with('.') &&
                     name.ends_with(".safetensors");
  check(plain, ErrorCode::invalid_argument,
        fmt::format("{}: {} is not the name of a .safetensors file in the same directory", origin,
                    brief_name(name)));
}

/// Reads which file has each tensor: its name to the file's.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const std::string origin = path.string();
  const auto index = parse_json(read_text_file(path, kMaxIndex), {.origin = origin});
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  check(found != index.end() && found->is_object() && !found->empty(), ErrorCode::corrupt_data,
        fmt::format("{}: \"weight_map\" is missing; it says which file holds a tensor", origin));
  std::map<std::string, std::string> places;
  for (const auto& [tensor, file] : found->items()) {
    check(file.is_string(), ErrorCode::corrupt_data,
          fmt::format("{}: the file of {} is {}; it must be a name", origin, brief_name(tensor),
                      brief(file)));
    check_shard_name(file.get_ref<const std::string&>(), origin);
    places.emplace(tensor, file.get<std::string>());
  }
  return places;
}

Files open_shards(const std::filesystem::path& directory) {
  const std::map<std::string, std::string> index = read_index(directory / kIndex);
  Files files;
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [tensor, name] : index) {
    auto [entry, added] = opened.try_emplace(name, nullptr);
    if (added) {
      files.push_back(std::make_unique<SafetensorsFile>(directory / name));
      entry->second = files.back().get();
    }
    check(entry->second->header().tensors.contains(tensor), ErrorCode::corrupt_data,
          fmt::format("{}: tensor {} is missing, and {} says that it is here",
                      entry->second->path(), brief_name(tensor), kIndex));
  }
  for (const auto& [name, file] : opened) {
    for (const auto& [tensor, stored] : file->header().tensors) {
      const auto place = index.find(tensor);
      check(place != index.end() && place->second == name, ErrorCode::corrupt_data,
            fmt::format("{}: tensor {} is here, and {} says that it is in {}", file->path(),
                        brief_name(tensor), kIndex,
                        place == index.end() ? "no file" : brief_name(place->second)));
    }
  }
  return files;
}

}  // namespace

Files open_checkpoint_files(const std::filesystem::path& path) {
  Files files;
  if (is_there(path) && !std::filesystem::is_directory(path)) {
    files.push_back(std::make_unique<SafetensorsFile>(path));
    return files;
  }
  const bool single = is_there(path / kSingle);
  const bool sharded = is_there(path / kIndex);
  check(!(single && sharded), ErrorCode::invalid_argument,
        fmt::format("{} has both {} and {}; remove the one that is out of date", path.string(),
                    kSingle, kIndex));
  check(single || sharded, ErrorCode::invalid_argument,
        fmt::format("{} has neither {} nor {}; weights in another format are converted by loading "
                    "them in transformers and save_pretrained",
                    path.string(), kSingle, kIndex));
  if (sharded) return open_shards(path);
  files.push_back(std::make_unique<SafetensorsFile>(path / kSingle));
  return files;
}

}  // namespace spillway::model
