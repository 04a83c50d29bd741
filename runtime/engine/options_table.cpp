#include "runtime/engine/options_table.hpp"

#include <algorithm>

#include "runtime/engine/detail/option_builders.hpp"

namespace spillway::engine {
namespace {

using detail::Limits;
using detail::member_option;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kOwn = "spillway";
constexpr std::uint64_t kMostSteps = 0xffff'ffff;
constexpr std::uint64_t kMostTileParameters = 1ULL << 40;

bool on_cuda(const TrainOptions& options) { return options.device == DeviceKind::cuda; }
bool on_host(const TrainOptions& options) { return !on_cuda(options); }
bool is_tf32(const TrainOptions& options) {
  return on_cuda(options) && options.compute == DType::fp32;
}

Option counted(Option option, bool (*counts)(const TrainOptions&)) {
  option.counts = counts;
  return option;
}

/// Paths also say that state goes to disk; an empty array says nothing.
Option nvme_option() {
  Option option = detail::given_option(
      kOwn, "a path or an array of paths",
      {"nvme", Part::free, "`RUN/state`",
       "directories for optimizer state on disk; puts all of it there, as `--nvme` does"});
  option.read = [](detail::Section& from, const Option& self, TrainOptions& options) {
    const auto paths = from.texts(self.key);
    if (!paths) return;
    options.nvme.assign(paths->begin(), paths->end());
    if (!paths->empty()) options.state_home = StateHome::nvme;
  };
  option.write = [](ordered_json& section, const Option& self, const TrainOptions& options) {
    if (options.nvme.empty()) return;
    section[self.key] = ordered_json::array();
    for (const std::filesystem::path& path : options.nvme)
      section[self.key].push_back(path.string());
  };
  return option;
}

/// `compute` is read with fp16 and bf16, which say it too.
Option compute_option() {
  Option option = detail::given_option(
      kOwn, detail::names_in_words<DType>(),
      {"compute", Part::mathematics, "fp32",
       "the type of parameters and activations, where neither `bf16` nor `fp16` is enabled"});
  option.write = [](ordered_json& section, const Option& self, const TrainOptions& options) {
    section[self.key] = config_name(options.compute);
  };
  return option;
}

/// Two modes of the design are refused in their own words.
Option update_option() {
  Option option = member_option<&TrainOptions::update>(
      kOwn,
      {"update", Part::free, "auto",
       "when an update runs: `deferred` to the next step's forward; `immediate` is refused by "
       "this version"});
  option.read = [](detail::Section& from, const Option& self, TrainOptions& options) {
    const auto name = from.text(self.key);
    if (name == "speculative" || name == "delayed") {
      from.refuse(ErrorCode::not_supported, self.key,
                  fmt::format("is \"{}\", which this version does not implement; write auto, "
                              "deferred or immediate",
                              *name));
    }
    detail::assign(options.update, from.choice<UpdateMode>(self.key));
  };
  return option;
}

void add_mathematics(std::vector<Option>& table) {
  using enum Part;
  const auto add = [&](Option option) { table.push_back(std::move(option)); };
  add(compute_option());
  add(member_option<&TrainOptions::device>(
      kOwn, {"device", mathematics, "`cuda` where a GPU is usable, else `host`",
             "where FWD-BWD runs: [gpu.md](gpu.md)", "what is usable here"}));
  add(counted(member_option<&TrainOptions::deterministic>(
                  kOwn, {"deterministic", mathematics, "true",
                         "on a GPU: only algorithms whose sums have one order"}),
              on_cuda));
  add(counted(
      member_option<&TrainOptions::tf32>(
          kOwn, {"tf32", mathematics, "false", "on a GPU: fp32 products with 10 bits of mantissa"}),
      is_tf32));
  add(member_option<&TrainOptions::context>(
      kOwn, {"context", mathematics, "the model's positions", "tokens a window", "the model's"}));
  add(member_option<&TrainOptions::rounds>(
      kOwn,
      {"rounds", mathematics, "1",
       "passes over a step's micro-batches; divides `gradient_accumulation_steps`", "1"},
      Limits{.low = 1}));
  add(member_option<&TrainOptions::tokens_per_step>(
      kOwn,
      {"tokens_per_step", free, "0: 8 windows",
       "what an absent or \"auto\" micro-batch and accumulation are chosen for; what is chosen "
       "is recorded"}));
  add(member_option<&TrainOptions::decay>(
      kOwn, {"decay", mathematics, "matrices",
             "what weight decay applies to; with `matrices` biases and norms are not decayed"}));
  add(member_option<&TrainOptions::state_format>(
      kOwn, {"state_format", mathematics, "split with bf16 compute, else fp32",
             "how the optimizer's state is kept: [user-guide.md](user-guide.md)"}));
  add(member_option<&TrainOptions::order>(
      kOwn, {"order", mathematics, "shuffled", "the order of windows, which never overlap"}));
  add(member_option<&TrainOptions::seed>(
      kOwn,
      {"seed", mathematics, "1234", "of initialisation, data order and stochastic rounding"}));
  add(member_option<&TrainOptions::tile_parameters>(
      kOwn, {"tile_parameters", layout, "2097152", "parameters a tile; a multiple of 4096"},
      Limits{kLeafParameters, kMostTileParameters}));
  add(member_option<&TrainOptions::operator_tile>(
      kOwn,
      {"operator_tile", mathematics, "0: layers are streamed whole",
       "for layers that are larger than the device: the most parameters of a streamed part of a "
       "layer; rounds differently"},
      Limits{0, kMostTileParameters}));
  add(counted(member_option<&TrainOptions::compute_threads>(
                  kOwn, {"compute_threads", mathematics, "0: every physical core",
                         "threads of FWD-BWD on the host", "every physical core"}),
              on_host));
}

void add_placement(std::vector<Option>& table) {
  using enum Part;
  const auto add = [&](Option option) { table.push_back(std::move(option)); };
  add(update_option());
  add(member_option<&TrainOptions::work_order>(
      kOwn, {"work_order", free, "layer_major", "what runs first: a layer, or a micro-batch"}));
  add(member_option<&TrainOptions::checkpointing>(
      kOwn, {"checkpointing", free, "auto: layer by layer what makes the shortest step",
             "the activations inside a layer: `recompute` them in backward, `keep` them on the "
             "device, or "
             "`offload` (those of the first layers, as many as do not fit, wait in host memory)"}));
  add(member_option<&TrainOptions::residency>(
      kOwn, {"residency", free, "auto",
             "parameters on the device: `none` streams every block, `all` keeps them"}));
  add(member_option<&TrainOptions::prefetch>(
      kOwn, {"prefetch", free, "1", "blocks uploaded ahead of use", "1"}));
  add(member_option<&TrainOptions::device_memory>(
      kOwn, {"device_memory", free, "what the device has", "budget; as `--device-memory`"}));
  add(member_option<&TrainOptions::host_memory>(
      kOwn, {"host_memory", free, "what cgroup and system leave", "budget; as `--host-memory`"}));
  add(nvme_option());
  add(member_option<&TrainOptions::state_home>(
      kOwn, {"state_home", free, "auto", "where the optimizer's state lives"}));
  add(member_option<&TrainOptions::activations>(
      kOwn, {"activations", free, "auto: off the device only where it is too small",
             "where the activations between blocks wait for backward"}));
  add(member_option<&TrainOptions::gradient_sums>(
      kOwn, {"gradient_sums", free, "auto",
             "with several `rounds`, where their gradients are added up in fp32; of blocks whose "
             "state is on the device always there"}));
  add(member_option<&TrainOptions::io_engine>(
      kOwn,
      {"io_engine", free, "auto: the best that the kernel offers", "how the disk is reached"}));
  add(member_option<&TrainOptions::threads>(
      kOwn,
      {"threads", free, "0: every physical core", "threads of the update", "every physical core"}));
  add(member_option<&TrainOptions::isa>(
      kOwn, {"isa", free, "the processor's best", "instruction set of the update",
             "the processor's best"}));
  add(member_option<&TrainOptions::host_link_gbps>(
      kOwn, {"host_link_gbps", free, "not throttled", "throttles the host backend's link"}));
  add(member_option<&TrainOptions::disk_gbps>(
      kOwn, {"disk_gbps", free, "not throttled", "throttles the disk"}));
}

void add_writing(std::vector<Option>& table) {
  using enum Part;
  const auto add = [&](Option option) { table.push_back(std::move(option)); };
  add(member_option<&TrainOptions::steps>(
      kOwn, {"steps", free, "0: one epoch", "optimizer steps of the run", "one epoch"},
      Limits{0, kMostSteps}));
  add(member_option<&TrainOptions::commit_every>(
      kOwn, {"commit_every", free, "1 with all state on disk, else planned",
             "steps between durable commits", "planned"}));
  add(member_option<&TrainOptions::save_every>(
      kOwn, {"save_every", free, "0: none", "steps between kept checkpoints"}));
  add(member_option<&TrainOptions::keep>(
      kOwn, {"keep", free, "2", "the newest kept checkpoints; older ones are removed"}));
  add(member_option<&TrainOptions::eval_every>(
      kOwn, {"eval_every", free, "0: at the end only", "steps between evaluations"}));
}

std::vector<Option> make_table() {
  std::vector<Option> table = detail::deepspeed_options();
  add_mathematics(table);
  add_placement(table);
  add_writing(table);
  return table;
}

/// "optimizer.params.betas" of the pointer "/optimizer/params/betas/1".
std::string path_of_pointer(std::string pointer) {
  const std::size_t last = pointer.rfind('/');
  const std::string_view tail = std::string_view(pointer).substr(last + 1);
  const bool index = tail.find_first_not_of("0123456789") == std::string_view::npos;
  if (index) pointer.resize(last);
  std::replace(pointer.begin(), pointer.end(), '/', '.');
  return pointer.substr(1);
}

}  // namespace

Option detail::given_option(std::string_view section, std::string_view type, const Words& words) {
  return {.section = section,
          .key = words.key,
          .part = words.part,
          .type = std::string(type),
          .standard = words.standard,
          .meaning = words.meaning,
          .automatic = words.automatic};
}

std::string Option::path() const { return detail::join_path(section, key); }

std::span<const Option> options_table() {
  static const std::vector<Option> table = make_table();
  return table;
}

const Option* find_option(std::string_view path) {
  for (const Option& option : options_table()) {
    if (option.path() == path) return &option;
  }
  return nullptr;
}

json recorded_options(const TrainOptions& options) {
  TrainOptions resolved = options;
  resolved.device = options.device.value_or(DeviceKind::host);
  const json all = json::parse(to_config_json(resolved));
  json recorded = json::object();
  const json flat = all.flatten();
  for (const auto& [pointer, unused] : flat.items()) {
    const std::string path = path_of_pointer(pointer);
    const Option* const option = find_option(path);
    SPILLWAY_ASSERT(option != nullptr);
    if (option->part == Part::free) continue;
    if (option->counts != nullptr && !option->counts(resolved)) continue;
    recorded[path] = all.at(
        json::json_pointer(pointer.substr(0, path.size() + 1)));  // the whole array of an element
  }
  return recorded;
}

}  // namespace spillway::engine
