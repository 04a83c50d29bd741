#include <fmt/format.h>

#include <memory>

#include "runtime/base/topology.hpp"
#include "runtime/engine/machine_tuning.hpp"
#include "runtime/engine/update_bench.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/train_flags.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;

struct ProfileFlags {
  std::filesystem::path file = default_profile();
  std::vector<std::filesystem::path> directories;
  std::uint32_t threads = 0;
  bool again = false;
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

ordered_json run(const ProfileFlags& flags, bool json) {
  const std::size_t threads = flags.threads != 0 ? flags.threads : read_topology().cores.size();
  engine::MachineTuning tuning(flags.file);
  if (flags.again) tuning.forget();
  ordered_json document{{"file", flags.file.string()}};
  for (const cpu_adam::Kernel* const kernel : usual_kernels()) {
    const std::size_t distance =
        tuning.prefetch(*kernel, threads, [&] { return engine::best_prefetch(*kernel, threads); });
    document["prefetch"][std::string(kernel->name)] = distance;
    if (!json) fmt::print("prefetch   {:<28} {} parameters ahead\n", kernel->name, distance);
  }
  for (const auto& directory : flags.directories) {
    const nvme_swap::DriveTuning drive =
        tuning.drive(directory, nvme_swap::EngineKind::automatic,
                     [&directory] { return nvme_swap::calibrate_drive({.directory = directory}); });
    document["drives"][directory.string()] = {
        {"engine", drive.engine},           {"direct", drive.direct},
        {"queue_depth", drive.queue_depth}, {"transfer_bytes", drive.transfer_bytes.value()},
        {"read_gbps", drive.read_gbps},     {"write_gbps", drive.write_gbps},
        {"mixed_gbps", drive.mixed_gbps}};
    if (json) continue;
    fmt::print("disk       {}: {}{}, {} x {}, read {:.2f}, write {:.2f}, both {:.2f} GB/s\n",
               directory.string(), drive.engine, drive.direct ? " direct" : "", drive.queue_depth,
               format_bytes(drive.transfer_bytes), drive.read_gbps, drive.write_gbps,
               drive.mixed_gbps);
  }
  if (!json) fmt::print("kept in    {}\n", flags.file.empty() ? "-" : flags.file.string());
  return document;
}

}  // namespace

void add_profile(CLI::App& app, Session& session) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* command = add_command(
      app, session, "profile",
      "Measures what this machine does best, and keeps it for later runs; changes no result",
      [flags, &session] { return run(*flags, session.json); });
  command->add_option("--profile", flags->file, "The machine profile")->capture_default_str();
  command->add_option("--dir", flags->directories, "Also the disk of this directory; several")
      ->check(CLI::ExistingDirectory);
  command->add_option("--threads", flags->threads, "Of the update; default: one a physical core");
  command->add_flag("--again", flags->again, "Measure also what is known");
}

}  // namespace spillway::cli
