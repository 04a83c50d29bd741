#include "tools/bench/machine_description.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/model/tensor_part.hpp"

namespace spillway::bench {
namespace {

using nlohmann::json;

constexpr Bytes kLargestFile = 1_MiB;
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr std::uint32_t kMostGpus = 65'536;
constexpr const char* kDeterministicKey = "attention_backward_deterministic_tflops";

/// The keys of one file; remembers which were asked for.
class Keys {
 public:
  Keys(const json& document, std::string_view origin) : document_(document), origin_(origin) {}

  [[nodiscard]] std::string text(const char* key) {
    const json& value = at(key);
    check(value.is_string() && !value.get<std::string>().empty(), ErrorCode::invalid_argument,
          fmt::format("{}: \"{}\" is {}; it must be a text", origin_, key, value.dump()));
    return value;
  }

  /// A positive number, in units of `unit`.
  [[nodiscard]] double rate(const char* key, double unit) {
    const json& value = at(key);
    check(value.is_number() && value.get<double>() > 0, ErrorCode::invalid_argument,
          fmt::format("{}: \"{}\" is {}; it must be a number above 0", origin_, key, value.dump()));
    return value.get<double>() * unit;
  }

  [[nodiscard]] std::uint32_t count(const char* key) {
    const json& value = at(key);
    check(value.is_number_unsigned() && value > 0 && value <= kMostGpus,
          ErrorCode::invalid_argument,
          fmt::format("{}: \"{}\" is {}; it must be a whole number from 1 to {}", origin_, key,
                      value.dump(), kMostGpus));
    return value;
  }

  [[nodiscard]] bool has(const char* key) const { return document_.contains(key); }

  [[nodiscard]] Bytes size(const char* key) { return parse_bytes(text(key)); }

  void allow(const char* key) { known_.insert(key); }

  void refuse_others() const {
    for (const auto& [key, value] : document_.items()) {
      check(known_.contains(key), ErrorCode::invalid_argument,
            fmt::format("{}: unknown key \"{}\"", origin_, key));
    }
  }

 private:
  const json& at(const char* key) {
    known_.insert(key);
    return document_.at(key);
  }

  const json& document_;
  std::string_view origin_;
  std::set<std::string> known_;
};

json parse(std::string_view text, std::string_view origin) {
  json document = parse_json(text, {.origin = origin, .code = ErrorCode::invalid_argument});
  check(document.is_object(), ErrorCode::invalid_argument,
        fmt::format("{} is not a JSON object", origin));
  return document;
}

double query_width(const model::ModelConfig& config) {
  return static_cast<double>(config.heads) * config.head_dim;
}

/// Forward FLOPs of causal attention of all layers, one micro-batch: two products over the pairs.
double attention_flops(const model::ModelConfig& config, const plan::Workload& workload,
                       std::uint32_t context) {
  const double pairs = static_cast<double>(workload.tokens) * (context + 1.0) / 2;
  return 4 * pairs * query_width(config) * config.layers;
}

constexpr std::array kOfMemory = {"host_memory", "host_memory_gbps"};
constexpr std::array kOfDrives = {"disk_read_gbps", "disk_write_gbps", "disk_both_gbps",
                                  "disk_space"};

/// Returns the names under the key, "64gb" before "128gb". Each has exactly `keys`.
std::vector<std::string> variants_of(const json& document, const char* key,
                                     std::span<const char* const> keys, std::string_view origin) {
  std::vector<std::string> names;
  if (!document.contains(key)) return names;
  const json& variants = document.at(key);
  check(variants.is_object(), ErrorCode::invalid_argument,
        fmt::format("{}: \"{}\" is {}; it must be an object", origin, key, brief(variants)));
  for (const auto& [name, values] : variants.items()) {
    const bool same = values.is_object() && values.size() == keys.size() &&
                      std::ranges::all_of(keys, [&](const char* k) { return values.contains(k); });
    check(same, ErrorCode::invalid_argument,
          fmt::format("{}: \"{}\" of \"{}\" is {}; it must have {} and nothing else", origin, name,
                      key, brief(values), fmt::join(keys, ", ")));
    names.push_back(name);
  }
  std::ranges::stable_sort(names, {}, &std::string::size);
  return names;
}

/// Returns the description with the values of one variant in place of its own.
json with_variant(json document, const char* key, const std::string& name,
                  std::string_view origin) {
  if (name.empty()) return document;
  const json& variants = document.contains(key) ? document.at(key) : json::object();
  check(variants.contains(name), ErrorCode::invalid_argument,
        fmt::format("{}: no \"{}\" is called \"{}\"", origin, key, name));
  const json values = variants.at(name);
  document.update(values);
  return document;
}

/// The keys that every description has.
constexpr std::array kRequired = {"name",
                                  "basis",
                                  "gpu",
                                  "matmul_tflops",
                                  "attention_forward_tflops",
                                  "attention_backward_tflops",
                                  "device_memory_gbps",
                                  "h2d_gbps",
                                  "d2h_gbps",
                                  "link_both_gbps",
                                  "host_memory_gbps",
                                  "disk_read_gbps",
                                  "disk_write_gbps",
                                  "disk_both_gbps",
                                  "op_overhead_us",
                                  "device_memory",
                                  "host_memory",
                                  "disk_space"};

void check_complete(const json& document, std::string_view origin) {
  std::vector<std::string> missing;
  for (const char* key : kRequired) {
    if (!document.contains(key)) missing.push_back(fmt::format("\"{}\"", key));
  }
  check(missing.empty(), ErrorCode::invalid_argument,
        fmt::format("{}: no key {}", origin, fmt::join(missing, ", ")));
}

MachineDescription read_machine(const json& document, std::string_view origin) {
  check_complete(document, origin);
  Keys keys(document, origin);
  MachineDescription machine;
  machine.name = keys.text("name");
  machine.basis = keys.text("basis");
  check(machine.basis == "assumed" || machine.basis == "measured", ErrorCode::invalid_argument,
        fmt::format("{}: \"basis\" is \"{}\"; it must be \"assumed\" or \"measured\"", origin,
                    machine.basis));
  machine.gpu = keys.text("gpu");
  if (keys.has("generation")) machine.generation = keys.count("generation");
  machine.matmul_flops = keys.rate("matmul_tflops", kTera);
  machine.attention_forward_flops = keys.rate("attention_forward_tflops", kTera);
  machine.attention_backward_flops = keys.rate("attention_backward_tflops", kTera);
  machine.assumes_slowdown = !keys.has(kDeterministicKey);
  machine.attention_backward_deterministic_flops =
      machine.assumes_slowdown ? machine.attention_backward_flops / kDeterministicSlowdown
                               : keys.rate(kDeterministicKey, kTera);
  plan::MachineProfile& lanes = machine.lanes;
  lanes.gpu_update = keys.rate("device_memory_gbps", kGiga);
  lanes.h2d = keys.rate("h2d_gbps", kGiga);
  lanes.d2h = keys.rate("d2h_gbps", kGiga);
  lanes.h2d_d2h_combined = keys.rate("link_both_gbps", kGiga);
  lanes.update = keys.rate("host_memory_gbps", kGiga);
  lanes.nvme_read = keys.rate("disk_read_gbps", kGiga);
  lanes.nvme_write = keys.rate("disk_write_gbps", kGiga);
  lanes.nvme_combined = keys.rate("disk_both_gbps", kGiga);
  lanes.op_overhead_seconds = keys.rate("op_overhead_us", 1e-6);
  machine.capacity = {.device = keys.size("device_memory"),
                      .host = keys.size("host_memory"),
                      .nvme = keys.size("disk_space")};
  if (keys.has("gpus")) machine.gpus = keys.count("gpus");
  if (keys.has("nvlink_gbps")) machine.inside = keys.rate("nvlink_gbps", kGiga);
  if (keys.has("net_gbps")) machine.between = keys.rate("net_gbps", kGiga);
  for (const char* other : {"sources", "memory", "drives"}) keys.allow(other);
  keys.refuse_others();
  return machine;
}

}  // namespace

MachineDescription parse_machine(std::string_view text, std::string_view origin,
                                 const MachineVariant& variant) {
  const json document = parse(text, origin);
  const std::vector<std::string> memory = variants_of(document, "memory", kOfMemory, origin);
  const std::vector<std::string> drives = variants_of(document, "drives", kOfDrives, origin);
  for (const std::string& name : memory) {
    (void)read_machine(with_variant(document, "memory", name, origin), origin);
  }
  for (const std::string& name : drives) {
    (void)read_machine(with_variant(document, "drives", name, origin), origin);
  }
  const json with_memory = with_variant(document, "memory", variant.memory, origin);
  MachineDescription machine =
      read_machine(with_variant(with_memory, "drives", variant.drives, origin), origin);
  machine.memory = memory;
  machine.drives = drives;
  return machine;
}

MachineDescription load_machine(const std::filesystem::path& file) {
  return parse_machine(read_text_file(file, kLargestFile), file.string());
}

void share_among_ranks(MachineDescription& machine, const Nodes& nodes) {
  const auto [ranks, machines] = nodes;
  check(ranks > 0 && machines > 0 && ranks % machines == 0, ErrorCode::invalid_argument,
        fmt::format("{} ranks do not divide among {} nodes", ranks, machines));
  const std::uint32_t each = ranks / machines;
  check(each <= machine.gpus, ErrorCode::invalid_argument,
        fmt::format("{} ranks on {} node(s) are {} on each, and {} has {} GPU(s)", ranks, machines,
                    each, machine.name, machine.gpus));
  // A ring between machines goes at the pace of its slowest link.
  const double rate = machines > 1 ? machine.between : machine.inside;
  check(ranks == 1 || rate > 0, ErrorCode::invalid_argument,
        fmt::format("{} does not say how fast its network is; add \"{}\" to its description",
                    machine.name, machines > 1 ? "net_gbps" : "nvlink_gbps"));
  plan::MachineProfile& lanes = machine.lanes;
  lanes.net = ranks > 1 ? rate : 0;
  machine.ranks = each;
  for (double* shared :
       {&lanes.update, &lanes.nvme_read, &lanes.nvme_write, &lanes.nvme_combined}) {
    *shared /= each;
  }
  machine.capacity.host = Bytes{machine.capacity.host.value() / each};
  machine.capacity.nvme = Bytes{machine.capacity.nvme.value() / each};
}

namespace {

/// Returns the sizes of what the first rank of a tensor group runs.
model::ModelConfig sizes_of_rank(const model::ModelConfig& config, std::uint32_t tensor) {
  const model::TensorPart first{.index = 0, .count = tensor};
  model::ModelConfig own = model::config_of_part(config, first);
  own.vocab_size = static_cast<std::uint32_t>(first.of(config.vocab_size).size());
  return own;
}

}  // namespace

double passing_bytes(const model::ModelConfig& config, const plan::Workload& workload) {
  const double width = config.width;
  const double kv_width = static_cast<double>(config.kv_heads) * config.head_dim;
  const double rotated = config.is_gpt2() ? 0 : query_width(config) + kv_width;
  const double mlp = config.ffn_width;
  const double gates = config.activation == model::Activation::silu ? 2 : 1;
  // Elements read plus written, per token and layer, as runtime/model/blocks/layer.cpp calls its
  // ops. Forward: two norms and two residuals (6 widths), a rotation in place, the activation.
  const double forward = 6 * width + 2 * rotated + (gates + 1) * mlp;
  // Backward: both norms again and their gradients (12 widths), a rotation, the activation's
  // gradient with its result again.
  const double backward = 12 * width + 2 * rotated + (2 * gates + 2) * mlp;
  const double head_norms = config.qk_norm ? 8 * rotated : 0;
  // Logits: fp32, written by their product, read for the sum and for the gradient; the gradient is
  // written once and read by two products.
  const double element = static_cast<double>(size_of(workload.compute));
  const double logits = config.vocab_size * (3.0 * sizeof(float) + 3 * element);
  const double per_token = element * config.layers * (forward + backward + head_norms) + logits;
  double accumulators = 0;
  for (const plan::BlockShape& block : workload.blocks) {
    accumulators += 2.0 * sizeof(float) * static_cast<double>(block.parameters.value());
  }
  return per_token * static_cast<double>(workload.tokens) + accumulators;
}

plan::MachineProfile profile_for(const MachineDescription& machine, const model::ModelConfig& whole,
                                 const plan::Workload& workload,
                                 const config::TrainOptions& options) {
  const model::ModelConfig config = sizes_of_rank(whole, workload.tensor.count);
  const double all = plan::micro_batch_flops(workload);
  const double attention = attention_flops(config, workload, options.context);
  const double attention_backward = 2.5 * attention;  // five products instead of two
  const double backward_rate = options.deterministic
                                   ? machine.attention_backward_deterministic_flops
                                   : machine.attention_backward_flops;
  const double products = all - attention - attention_backward;
  const double seconds = products / machine.matmul_flops +
                         attention / machine.attention_forward_flops +
                         attention_backward / backward_rate +
                         passing_bytes(config, workload) / machine.lanes.gpu_update;
  plan::MachineProfile profile = machine.lanes;
  profile.gpu_flops = all / seconds;
  const bool inside = machine.ranks % workload.tensor.count == 0 && machine.inside > 0;
  if (workload.sums_passes()) profile.net_tensor = inside ? machine.inside : machine.between;
  return profile;
}

}  // namespace spillway::bench
