#include "tools/bench/named_machines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.hpp"
#include "tools/bench/suggestion.hpp"

namespace spillway::bench {
namespace {

constexpr std::size_t kNamesOfAnError = 3;

struct NamedMachine {
  std::string name;
  MachineVariant variant;
  bool built;  ///< has all that its description leaves open
};

std::string dashed(const std::string& word) { return word.empty() ? word : "-" + word; }

std::vector<NamedMachine> named_machines(const MachineText& text) {
  const MachineDescription described = parse_machine(text.json, text.name);
  std::vector<std::string> memory = described.memory;
  std::vector<std::string> drives = described.drives;
  const bool open_memory = !memory.empty();
  const bool open_drives = !drives.empty();
  memory.insert(memory.begin(), "");
  drives.insert(drives.begin(), "");
  std::vector<NamedMachine> all;
  for (const std::string& size : memory) {
    for (const std::string& set : drives) {
      all.push_back({.name = std::string(text.name) + dashed(size) + dashed(set),
                     .variant = {.memory = size, .drives = set},
                     .built = (open_memory || open_drives) && open_memory != size.empty() &&
                              open_drives != set.empty()});
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const MachineText& text : machine_texts()) {
    for (NamedMachine& machine : named_machines(text)) names.push_back(std::move(machine.name));
  }
  return names;
}

std::vector<std::string> built_machine_names() {
  std::vector<std::string> names;
  for (const MachineText& text : machine_texts()) {
    for (NamedMachine& machine : named_machines(text)) {
      if (machine.built) names.push_back(std::move(machine.name));
    }
  }
  return names;
}

MachineDescription machine_from(const std::filesystem::path& name_or_path) {
  // A pipe or a device is refused by what it is, not taken for a name.
  const bool path = std::filesystem::exists(name_or_path);
  if (path && !std::filesystem::is_directory(name_or_path)) return load_machine(name_or_path);
  const std::string name = name_or_path.string();
  for (const MachineText& text : machine_texts()) {
    if (!name.starts_with(text.name)) continue;
    const std::vector<NamedMachine> machines = named_machines(text);
    const auto found = std::ranges::find(machines, name, &NamedMachine::name);
    if (found == machines.end()) continue;  // "h100" begins "h100-128gib" too
    MachineDescription machine = parse_machine(text.json, name, found->variant);
    machine.name = fmt::format("{}: {}", name, machine.name);
    return machine;
  }
  const std::vector<std::string> near = nearest_first(name, machine_names(), kNamesOfAnError);
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("no machine is called \"{}\" and no file has that path; names like it are "
                  "{}; spillway plan --machines lists all",
                  name, fmt::join(near, ", ")));
}

}  // namespace spillway::bench
