#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/base/topology.hpp"
#include "runtime/engine/machine/machine_tuning.hpp"
#include "runtime/engine/machine/product_tuning.hpp"
#include "runtime/engine/machine/update_bench.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/train_flags.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;

/// Serves a step's shapes where no configuration says it, as `bench step` has it.
constexpr std::uint32_t kDefaultContext = 4096;

struct ProfileFlags {
  std::filesystem::path file = default_profile();
  std::vector<std::filesystem::path> directories;
  std::uint32_t threads = 0;
  bool again = false;
  TrainFlags train;  ///< whose model has the matrix products; no model: none
  std::string compute;
  std::uint32_t context = 0;
  std::uint32_t micro_batch = 0;
};

/// The kernels that runs use: 16-bit gradients and parameters in every format, and plain fp32.
std::vector<const cpu_adam::Kernel*> usual_kernels() {
  std::vector<const cpu_adam::Kernel*> kernels;
  for (const cpu_adam::Kernel& kernel : cpu_adam::kernels()) {
    const bool same = kernel.gradient_dtype == kernel.parameter_dtype;
    if (kernel.isa == cpu_adam::best_isa() && same) kernels.push_back(&kernel);
  }
  return kernels;
}

/// What the shapes of a step's products depend on.
config::TrainOptions options_of(const ProfileFlags& flags, const model::ModelConfig& config) {
  config::TrainOptions options = flags.train.options();
  if (flags.train.config.empty()) {
    options.compute = DType::bf16;
    options.context = std::min(kDefaultContext, config.max_context);
  }
  if (!flags.compute.empty()) options.compute = parse_dtype(flags.compute);
  if (flags.context > 0) options.context = flags.context;
  if (flags.micro_batch > 0) options.micro_batch = flags.micro_batch;
  engine::resolve(options, config);
  return options;
}

void print(const engine::TunedProduct& product) {
  const std::string name = model::cuda::name_of(product.shape);
  if (product.known) {
    answer("           {:<48} known\n", name);
  } else if (product.algorithms == 0) {
    answer("           {:<48} no algorithm for aligned operands\n", name);
  } else {
    answer("           {:<48} {:>9.4f} ms, best of {:>2} {:>9.4f} ms, {:+.1f} %\n", name,
           product.first_milliseconds, product.algorithms, product.best_milliseconds,
           100 * (product.gain() - 1));
  }
}

ordered_json json_of(const engine::TunedProduct& product) {
  ordered_json entry{{"key", product.key},
                     {"rows", product.shape.rows},
                     {"columns", product.shape.columns},
                     {"inner", product.shape.inner},
                     {"known", product.known},
                     {"algorithms", product.algorithms}};
  if (product.algorithms == 0) return entry;
  entry["first_milliseconds"] = product.first_milliseconds;
  entry["best_milliseconds"] = product.best_milliseconds;
  entry["gain"] = product.gain();
  return entry;
}

/// Tunes those of the model that the flags name.
ordered_json tune_products(const ProfileFlags& flags, const model::ModelConfig& config,
                           engine::MachineTuning& tuning, bool json) {
  const config::TrainOptions options = options_of(flags, config);
  check(options.device == config::DeviceKind::cuda, ErrorCode::not_supported,
        "--model measures matrix products on a GPU, and the device is the host; without --model "
        "everything else is measured");
  const auto shapes = engine::planned_products(config, options);
  if (!json) {
    answer("products   {} of a step with {} x {} tokens in {}; operands of up to {}\n",
           shapes.size(), options.micro_batch, options.context, name_of(options.compute),
           format_bytes(engine::ProductOperands::needed(shapes, options.compute)));
  }
  ordered_json list = ordered_json::array();
  const auto what = flags.again ? engine::MeasureWhat::everything : engine::MeasureWhat::unknown;
  engine::tune_products({.options = options, .shapes = shapes, .what = what}, tuning,
                        [&](const engine::TunedProduct& product) {
                          list.push_back(json_of(product));
                          if (!json) print(product);
                        });
  return list;
}

ordered_json run(const ProfileFlags& flags, bool json) {
  const auto config = flags.train.model_config();
  check(config.has_value() || flags.train.config.empty(), ErrorCode::invalid_argument,
        "a configuration says how a model is trained: give the model too, by --model or --from");
  const std::size_t threads = flags.threads != 0 ? flags.threads : read_topology().cores.size();
  const Bytes room = engine::room_in(read_memory_budget());
  engine::MachineTuning tuning(flags.file);
  if (flags.again) tuning.forget();
  ordered_json document{{"file", flags.file.string()}};
  if (config) document["products"] = tune_products(flags, *config, tuning, json);
  for (const cpu_adam::Kernel* const kernel : usual_kernels()) {
    const std::size_t distance = tuning.prefetch(*kernel, threads, [&] {
      return engine::best_prefetch(*kernel, threads, engine::prefetch_parameters(*kernel, room));
    });
    document["prefetch"][std::string(kernel->name)] = distance;
    if (!json) answer("prefetch   {:<28} {} parameters ahead\n", kernel->name, distance);
  }
  for (const auto& directory : flags.directories) {
    const nvme_swap::DriveTuning drive =
        tuning.drive(directory, nvme_swap::EngineKind::automatic, [&] {
          const Bytes free{std::filesystem::space(directory).available};
          return nvme_swap::calibrate_drive(
              nvme_swap::made_to_fit({.directory = directory}, room, free));
        });
    document["drives"][directory.string()] = {
        {"engine", drive.engine},           {"direct", drive.direct},
        {"queue_depth", drive.queue_depth}, {"transfer_bytes", drive.transfer_bytes.value()},
        {"read_gbps", drive.read_gbps},     {"write_gbps", drive.write_gbps},
        {"mixed_gbps", drive.mixed_gbps}};
    if (json) continue;
    answer("disk       {}: {}{}, {} x {}, read {:.2f}, write {:.2f}, both {:.2f} GB/s\n",
           directory.string(), drive.engine, drive.direct ? " direct" : "", drive.queue_depth,
           format_bytes(drive.transfer_bytes), drive.read_gbps, drive.write_gbps, drive.mixed_gbps);
  }
  if (!json) answer("kept in    {}\n", flags.file.empty() ? "-" : flags.file.string());
  return document;
}

}  // namespace

void add_profile(Command app, Session& session) {
  auto flags = std::make_shared<ProfileFlags>();
  Command command = add_command(app, session, "profile",
                                "Measures what this machine does best, and keeps it for later runs",
                                [flags, &session] { return run(*flags, session.json); });
  command.add_option("--profile", flags->file, "This file keeps the profile of the machine")
      .capture_default();
  command
      .add_option("--dir", flags->directories,
                  "The disk of this directory is measured too; several directories may be given")
      .existing_directory();
  command.add_option("--threads", flags->threads,
                     "The update uses this many threads; by default one on each physical core");
  command.add_option("config", flags->train.config,
                     "With --model, this is the configuration that the model is trained with");
  const Argument architecture = flags->train.add_model_to(command);
  architecture.description_before(
      "The matrix products of this model's step are measured too, on the GPU. ");
  command.option("--layers").needs(architecture);
  command.add_option("--from", flags->train.from, "The model is that of this HF checkpoint or run")
      .excludes(architecture);
  flags->train.set.add(command, "device").environment("SPILLWAY_DEVICE");
  flags->train.set.add(command, "device_memory")
      .description("The operands of the products take at most this much; by default what is free");
  command.add_option(
      "--context", flags->context,
      "A window has this many tokens; by default as many as in the configuration, or at "
      "most 4096");
  command.add_option(
      "--micro-batch", flags->micro_batch,
      "A micro-batch has this many windows; by default as many as in the configuration, "
      "or 1");
  command.add_option(
      "--compute", flags->compute,
      "The products have this type: fp32, bf16 or fp16; by default the configuration's, "
      "or bf16");
  command.add_flag("--again", flags->again, "What is known already is measured again");
}

}  // namespace spillway::cli
