#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "tools/bench/gpu_bench.hpp"
#include "tools/bench/model_shapes.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/option_flags.hpp"

namespace spillway::cli {
namespace {

using bench::CopyRates;
using bench::GpuMeasurement;
using bench::ProductRate;
using nlohmann::ordered_json;

struct BenchGpuFlags {
  OptionFlags machine;
  std::string compute;
  std::uint32_t sequence = 0;
  std::string copy;
  double seconds = 0;
  std::uint32_t compute_threads = 0;
  std::filesystem::path model;
  bool pinned_only = false;
  bool any_order = false;
};

bench::GpuCase case_of(const BenchGpuFlags& flags) {
  const config::TrainOptions machine = flags.machine.options();
  bench::GpuCase shapes = bench::default_case(machine.device.value_or(engine::usable_device()));
  shapes.pageable = !flags.pinned_only;
  shapes.deterministic = !flags.any_order;
  if (!flags.model.empty()) bench::take_model(bench::model_from(flags.model), shapes);
  if (!flags.compute.empty()) shapes.compute = parse_dtype(flags.compute);
  if (flags.sequence > 0) shapes.sequence = flags.sequence;
  shapes.head_rows = std::min(shapes.head_rows, shapes.sequence);
  if (!flags.copy.empty()) shapes.copy = parse_bytes(flags.copy);
  if (flags.seconds > 0) shapes.seconds = flags.seconds;
  shapes.compute_threads = flags.compute_threads;
  return shapes;
}

ordered_json json_of(const CopyRates& rates) {
  return {{"h2d_gb_per_s", rates.h2d}, {"d2h_gb_per_s", rates.d2h}, {"both_gb_per_s", rates.both}};
}

ordered_json json_of(const std::vector<ProductRate>& rates) {
  ordered_json list = ordered_json::array();
  for (const ProductRate& rate : rates) {
    list.push_back({{"name", rate.name},
                    {"rows", rate.rows},
                    {"columns", rate.columns},
                    {"inner", rate.inner},
                    {"seconds", rate.seconds},
                    {"tflops", rate.tflops()}});
  }
  return list;
}

void print(const GpuMeasurement& m) {
  answer("{}\n", m.device);
  for (const auto* list : {&m.products, &m.attention}) {
    for (const ProductRate& rate : *list) {
      answer("  {:<28} {:>6} x {:>6} x {:>6}  {:>9.3f} ms  {:>8.2f} TFLOP/s\n", rate.name,
             rate.rows, rate.columns, rate.inner, rate.seconds * 1e3, rate.tflops());
    }
  }
  if (!m.attention_engines.empty()) answer("  attention: {}\n", m.attention_engines);
  answer("  one layer, forward and backward: {:.2f} TFLOP/s\n", m.layer_tflops);
  for (const auto& [name, measured] :
       {std::pair{"pinned", std::optional(m.pinned)}, {"pageable", m.pageable}}) {
    if (!measured) continue;
    const CopyRates& rates = *measured;
    answer("  {:<8} copies: up {:.1f} GB/s, down {:.1f} GB/s, both at once {:.1f} GB/s\n", name,
           rates.h2d, rates.d2h, rates.both);
  }
}

ordered_json run(const BenchGpuFlags& flags, bool json) {
  const bench::GpuCase shapes = case_of(flags);
  const GpuMeasurement m = bench::measure_gpu(shapes);
  if (!json) print(m);
  ordered_json document{{"device", m.device},
                        {"compute", name_of(shapes.compute)},
                        {"sequence", shapes.sequence},
                        {"layer_tflops", m.layer_tflops},
                        {"products", json_of(m.products)},
                        {"attention", json_of(m.attention)},
                        {"attention_engines", m.attention_engines},
                        {"deterministic", shapes.deterministic},
                        {"copy_bytes", shapes.copy.value()},
                        {"pinned", json_of(m.pinned)}};
  if (m.pageable) document["pageable"] = json_of(*m.pageable);
  return document;
}

}  // namespace

void add_bench_gpu(Command bench, Session& session) {
  auto flags = std::make_shared<BenchGpuFlags>();
  Command command = add_command(
      bench, session, "gpu",
      "Measures products and attention at a layer's shapes, and copies to and from the device",
      [flags, &session] { return run(*flags, session.json); });
  flags->machine.add(command, "device").environment("SPILLWAY_DEVICE");
  command.add_flag("--any-order", flags->any_order,
                   "Sums may have any order, as with spillway.deterministic false");
  command.add_option("--model", flags->model,
                     "The layer is this model's: a name, as of bench step, or the path of a "
                     "config.json; by default Llama-3-8B on a GPU, a small one on the host");
  command.add_option(
      "--compute", flags->compute,
      "The products have this type: fp32, bf16 or fp16; by default bf16 on a GPU, fp32 on "
      "the host");
  command.add_option("--sequence", flags->sequence,
                     "The window has this many tokens; by default 8192 on a GPU, 512 on the host");
  command.add_option("--copy", flags->copy,
                     "A copy has this size; by default 1GiB on a GPU, 64MiB on the host");
  command.add_flag("--pinned-only", flags->pinned_only,
                   "Only copies of pinned memory are measured");
  command.add_option(
      "--seconds", flags->seconds,
      "Each measurement takes this many seconds; by default 0.3 on a GPU, 0.1 on the host");
  command.add_option(
      "--compute-threads", flags->compute_threads,
      "The host backend uses this many threads; by default one on each physical core");
}

}  // namespace spillway::cli
