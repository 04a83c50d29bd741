#include "runtime/engine/planned_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "offload/cuda/cuda_device.hpp"
#include "runtime/base/cuda_library_directories.hpp"
#include "runtime/config/schedule.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/machine/own_machine.hpp"
#include "runtime/engine/prepare/automatic.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/planner.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/ranks/rank_agreement.hpp"
#include "runtime/engine/run/job_start.hpp"
#include "runtime/engine/run/start_values.hpp"
#include "runtime/engine/run/tokenizer.hpp"

namespace spillway::engine {
namespace {

constexpr std::uint64_t kLongRead = (2_GiB).value();

/// Returns what the plan shows of a rank's cores and folders.
ShownShare shown(const MachineShare& share, const ThreadBinding& binding) {
  ShownShare mine{.machine = machine_name().data(),
                  .nodes = {},
                  .cores = static_cast<std::uint32_t>(share.core_share.cores.size()),
                  .bound = binding.holds(),
                  .gpu = {},
                  .state = {}};
  for (const Core& core : share.core_share.cores) {
    const std::uint32_t node = core.node.value();
    if (std::ranges::find(mine.nodes, node) == mine.nodes.end()) mine.nodes.push_back(node);
  }
  for (const auto& directory : share.directories) mine.state.push_back(directory.string());
  return mine;
}

plan::Replicas own_replica(const TrainRequest& request, const plan::GridPlace& place) {
  if (request.ranks == nullptr) return {};
  return replicas_of(request.options, place.grid.replicas);
}

/// A model that is ready to run.
struct MadeModel {
  ModelRuntime runtime;
  DeviceRecord device;
  std::size_t measured_products;  ///< matrix products with algorithms of the machine profile
};

struct RunWithModel {
  OpenedRun run;
  ModelRuntime model;
};

/// Opens a run, and plans it.
class RunPreparation {
 public:
  RunPreparation(const TrainRequest& request, RankGroups& ranks, RunClaim& claim,
                 TrainObserver& observer)
      : request_(request),
        ranks_(ranks),
        claim_(claim),
        observer_(observer),
        replicas_(own_replica(request, ranks.place())),
        known_(request.profile) {}

  [[nodiscard]] RunWithModel open();
  [[nodiscard]] PlannedRun plan(RunWithModel opened);

 private:
  [[nodiscard]] TakenShare take_share(config::TrainOptions& options) const;
  [[nodiscard]] std::unique_ptr<comm::DeviceCommunicator> join_gpus(
      const config::TrainOptions& options) const;
  [[nodiscard]] MachinePart part(const MachineShare& share) const;
  void resolve_automatic(const MachineShare& share, const model::ModelConfig& config,
                         config::TrainOptions& options);
  [[nodiscard]] DataIdentity recognise_data(const TrainingData& data,
                                            const model::ModelConfig& config) const;
  [[nodiscard]] MadeModel make_model(const RunConfig& now) const;
  [[nodiscard]] MadeModel resume_model(const RunConfig& now, const DeviceRecord& recorded) const;

  const TrainRequest& request_;
  RankGroups& ranks_;
  RunClaim& claim_;
  TrainObserver& observer_;
  const plan::Replicas replicas_;
  MachineTuning known_;  ///< what earlier runs measured of this machine
};

/// Whatever refuses this start does so before a file of the run is changed. A schedule that was to
/// end with the run keeps the end that it started with.
RunWithModel RunPreparation::open() {
  const std::optional<StepIndex> start = agree_on_start(ranks_, claim_);
  RunConfig now{.model = model_of(request_, RunDirectory(claim_.job())),
                .options = request_.options,
                .data = std::filesystem::absolute(request_.data).string()};
  config::TrainOptions& options = now.options;
  options.tensor.index = ranks_.place().tensor_index();
  TakenShare share = take_share(options);
  resolve(options, now.model);
  resolve_automatic(share.share, now.model, options);
  if (request_.from) check_tokenizer(request_.data, *request_.from);
  TrainingData data = TrainingData::open(request_.data, now.model, options.context);
  const data::Sampler sampler(data.train.size(), options.context, options.order, options.seed);
  const std::uint64_t steps = steps_of(options, sampler, replicas_.count);
  config::check_momentum(options.schedule, steps);
  now.identity = recognise_data(data, now.model);
  check_same_run(ranks_, now, sources_of(request_, now, data, start));
  ranks_.join(replicas_.secondary, join_gpus(options));
  const config::ScheduleOptions given = options.schedule;
  options.schedule = config::resolve_schedule(
      given, start ? claim_.recorded().options.schedule.total_steps : steps);
  if (start) check_same_mathematics(claim_.recorded(), now);
  MadeModel model = start ? resume_model(now, claim_.recorded().device) : make_model(now);
  now.device = std::move(model.device);
  for (const std::string& note : notes_at_start(now.model, given, options, steps)) {
    observer_.noted(note);
  }
  prepare_state(ranks_, claim_, options.nvme);
  for (const std::string& note : claim_.take_notes()) observer_.noted(note);
  return {.run = {.resume_at = start,
                  .replicas = replicas_,
                  .share = std::move(share),
                  .data = std::move(data),
                  .sampler = sampler,
                  .steps = steps,
                  .measured_products = model.measured_products,
                  .config = std::move(now)},
          .model = std::move(model.runtime)};
}

/// Gives this rank its part of a machine that it shares with others: GPU, cores and drives. A run
/// that goes on has its state where it is.
TakenShare RunPreparation::take_share(config::TrainOptions& options) const {
  if (ranks_.alone()) return {};
  const config::DeviceKind device = options.device.value_or(usable_device());
  options.device_index = gpu_of_rank(ranks_, device);
  ShareRequest request;
  if (device == config::DeviceKind::cuda) {
    const offload::CudaDevice gpu = offload::query_cuda_device(options.device_index);
    request.gpu = gpu.pci_bus_id;
    request.gpu_node = gpu.numa_node;
  }
  const bool resumes = claim_.resumes();
  request.directories =
      resumes ? claim_.state_directories() : state_directories(options, claim_.run().root());
  request.divides_directories = !resumes;
  MachineShare share = share_machine(ranks_, request);
  if (options.threads == 0) options.threads = share.threads;
  if (options.compute_threads == 0) options.compute_threads = share.threads;
  if (!options.nvme.empty() && !resumes) options.nvme = share.directories;
  auto binding = std::make_unique<ThreadBinding>(share.core_share.cores);
  ShownShare mine = shown(share, *binding);
  mine.threads = options.threads;
  mine.gpu = request.gpu.value_or("");
  std::vector<ShownShare> all = gather_shares(ranks_, mine);
  return {.share = std::move(share), .binding = std::move(binding), .shown = std::move(all)};
}

/// All ranks have the same device by now. A machine that lacks NCCL ends the run here.
std::unique_ptr<comm::DeviceCommunicator> RunPreparation::join_gpus(
    const config::TrainOptions& options) const {
  if (ranks_.alone() || options.device != config::DeviceKind::cuda) return nullptr;
  check(!config::has_stale_weights(options.pipeline.schedule), ErrorCode::not_supported,
        "this version runs schedules with stale weights on the host alone; use another "
        "spillway.pipeline_schedule, or --device host");
  comm::Communicator& job = *ranks_.host(RankGroups::Group::job);
  return std::make_unique<comm::DeviceCommunicator>(
      job, comm::DeviceCommunicatorOptions{.timeout_ms = job.timeout_ms(),
                                           .library_directories = cuda_library_directories()});
}

/// The swap files of a resumed run are there already.
MachinePart RunPreparation::part(const MachineShare& share) const {
  using SwapFiles = MachinePart::SwapFiles;
  return {.run = request_.run,
          .share = share,
          .swap_files = claim_.resumes() ? SwapFiles::there : SwapFiles::to_come};
}

/// A resumed run keeps what it chose when it began.
void RunPreparation::resolve_automatic(const MachineShare& share, const model::ModelConfig& config,
                                       config::TrainOptions& options) {
  if (claim_.resumes()) take_automatic(options, claim_.recorded().options);
  const auto budgets = [&](const config::TrainOptions& tried, const plan::Workload& step) {
    return part(share).budgets(tried, step, ranks_);
  };
  for (const std::string& line : choose_automatic(options, config, budgets)) {
    observer_.noted(line);
  }
}

/// A resumed run knows the file again, if nobody has touched it.
DataIdentity RunPreparation::recognise_data(const TrainingData& data,
                                            const model::ModelConfig& config) const {
  const DataIdentity known = claim_.resumes() ? claim_.recorded().identity : DataIdentity{};
  const data::FileStamp file = data.train.stamp();
  if (known.stamp != file && file.bytes > kLongRead) {
    observer_.noted(fmt::format("reading all {} of train.bin once, to know it again",
                                format_bytes(Bytes{file.bytes})));
  }
  return data.identity(config.vocab_size, known);
}

/// Operators before a byte is written: a device that cannot run leaves no run behind.
MadeModel RunPreparation::make_model(const RunConfig& now) const {
  std::optional<DeviceRecord> origin;
  if (request_.from && RunDirectory(*request_.from).exists()) {
    origin = RunDirectory(*request_.from).read_config().device;
  }
  ModelRuntime model = make_model_runtime(
      now.model, now.options,
      choose_products({.continued = origin ? &*origin : nullptr, .measured = known_.products()}));
  DeviceRecord device = record_of(now.options, *model.ops);
  const std::size_t measured = products_of(device).common(known_.products());
  if (measured > 0) {
    observer_.noted(
        fmt::format("{} matrix products use algorithms that were measured on this "
                    "machine ({})",
                    measured, known_.file().string()));
  }
  return {.runtime = std::move(model), .device = std::move(device), .measured_products = measured};
}

MadeModel RunPreparation::resume_model(const RunConfig& now, const DeviceRecord& recorded) const {
  ModelRuntime model =
      make_model_runtime(now.model, now.options,
                         choose_products({.resumed = &recorded, .measured = known_.products()}));
  DeviceRecord device = record_of(now.options, *model.ops);
  const auto text = [](const DeviceRecord& record) {
    return fmt::format("{} {} {}", record.name, record.libraries, record.attention);
  };
  // Older runs did not record the attention implementation.
  const bool attends_alike = recorded.attention.empty() || recorded.attention == device.attention;
  if (device.name != recorded.name || device.libraries != recorded.libraries || !attends_alike) {
    observer_.noted(
        fmt::format("the run began on {}; on {} its bits may differ from those of an "
                    "uninterrupted run",
                    text(recorded), text(device)));
  }
  return {.runtime = std::move(model), .device = std::move(device), .measured_products = 0};
}

PlannedRun RunPreparation::plan(RunWithModel opened) {
  OpenedRun& run = opened.run;
  const Note note = [this](const std::string& text) { observer_.noted(text); };
  // Ranks sharing cores measure simultaneously, so do not report each other as foreign load.
  const bool own_cores = ranks_.alone() || run.share.binding->holds();
  RunMachine machine({.config = run.config.model,
                      .part = part(run.share.share),
                      .ranks = ranks_,
                      .known = known_,
                      .note = note,
                      .note_load = own_cores ? note : Note([](const std::string&) {})},
                     opened.model, claim_.state_directories());
  Planned plan =
      plan_rank(run.config.model, run.config.options, run.replicas,
                claim_.resumes() ? StageLayers::kept : StageLayers::chosen, machine, ranks_, note);
  run.config.options = plan.options;  // which has the layers of the stages
  if (plan.score_gradients) {
    opened.model = make_model_runtime(run.config.model, plan.options,
                                      products_of(run.config.device), *plan.score_gradients);
  }
  nvme_swap::StoreOptions store;
  store.directories = claim_.state_directories();
  store.owner = claim_.manifest().state_id;
  store.engine = plan.options.io_engine;
  store.disk_gigabytes_per_second = plan.options.disk_gbps;
  tune_store(machine.tuning().drives, store);
  store.weights = disk_weights(machine.tuning().drives, store.directories,
                               plan::slots_on_disk(plan.workload, plan.placement));
  EngineSetup setup{.config = run.config.model,
                    .plan = std::move(plan),
                    .store = {.options = std::move(store),
                              .start = run.resume_at ? Start::resumed : Start::anew,
                              .resume_at = run.resume_at},
                    .update_prefetch = machine.tuning().update_prefetch,
                    .ranks = &ranks_};
  return {.opened = std::move(run), .setup = std::move(setup), .model = std::move(opened.model)};
}

}  // namespace

std::unique_ptr<RunClaim> claim_run(const TrainRequest& request, RankGroups& ranks) {
  auto claim = std::make_unique<RunClaim>(
      RunClaim::Request{.run = request.run,
                        .resume = request.resume,
                        .nvme = request.options.nvme,
                        .part = {.ranks = ranks.place().grid.ranks(),
                                 .rank = ranks.place().rank,
                                 .sharding = own_replica(request, ranks.place()).sharding},
                        .made = ranks.leads() ? 0 : ranks.first(std::uint64_t{0})});
  if (ranks.leads()) static_cast<void>(ranks.first(claim->made()));
  return claim;
}

PlannedRun plan_run(const TrainRequest& request, RankGroups& ranks, RunClaim& claim,
                    TrainObserver& observer) {
  RunPreparation preparation(request, ranks, claim, observer);
  return preparation.plan(preparation.open());
}

}  // namespace spillway::engine
