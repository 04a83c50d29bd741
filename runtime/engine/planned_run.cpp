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

/// Opens a run, and plans it.
class RunPreparation {
 public:
  RunPreparation(const TrainRequest& request, RankGroups& ranks, TrainObserver& observer)
      : request_(request),
        ranks_(ranks),
        observer_(observer),
        replicas_(own_replica(request, ranks.place())),
        known_(request.profile) {}

  [[nodiscard]] std::unique_ptr<RunClaim> claim() const;
  [[nodiscard]] OpenedRun open(RunClaim& claim);
  [[nodiscard]] PlannedRun plan(OpenedRun opened, std::unique_ptr<RunClaim>&& claim);

 private:
  [[nodiscard]] static plan::Replicas own_replica(const TrainRequest& request,
                                                  const plan::GridPlace& place);
  [[nodiscard]] TakenShare take_share(const RunClaim& claim, config::TrainOptions& options) const;
  [[nodiscard]] std::unique_ptr<comm::DeviceCommunicator> join_gpus(
      const config::TrainOptions& options) const;
  [[nodiscard]] MachinePart part(const RunClaim& claim, const MachineShare& share) const;
  void resolve_automatic(const RunClaim& claim, const MachineShare& share,
                         const model::ModelConfig& config, config::TrainOptions& options);
  [[nodiscard]] DataIdentity recognise_data(const RunClaim& claim, const TrainingData& data,
                                            const model::ModelConfig& config) const;
  [[nodiscard]] MadeModel make_model(const RunConfig& now) const;
  [[nodiscard]] MadeModel resume_model(const RunConfig& now, const DeviceRecord& recorded) const;

  const TrainRequest& request_;
  RankGroups& ranks_;
  TrainObserver& observer_;
  const plan::Replicas replicas_;
  MachineTuning known_;  ///< what earlier runs measured of this machine
};

plan::Replicas RunPreparation::own_replica(const TrainRequest& request,
                                           const plan::GridPlace& place) {
  if (request.ranks == nullptr) return {};
  plan::Replicas replicas = replicas_of(request.options, place.grid.replicas);
  replicas.index = place.replica();
  return replicas;
}

/// The folders of the other ranks lie in that of rank 0, which claims its own first.
std::unique_ptr<RunClaim> RunPreparation::claim() const {
  auto claim = std::make_unique<RunClaim>(
      RunClaim::Request{.run = request_.run,
                        .resume = request_.resume,
                        .nvme = request_.options.nvme,
                        .part = {.ranks = ranks_.place().grid.ranks(),
                                 .rank = ranks_.place().rank,
                                 .sharding = replicas_.sharding},
                        .made = ranks_.leads() ? 0 : ranks_.first(std::uint64_t{0})});
  if (ranks_.leads()) static_cast<void>(ranks_.first(claim->made()));
  return claim;
}

/// Whatever refuses this start does so before a file of the run is changed. A schedule that was to
/// end with the run keeps the end that it started with.
OpenedRun RunPreparation::open(RunClaim& claim) {
  const std::optional<StepIndex> start = agree_on_start(ranks_, claim);
  RunConfig now{.model = model_of(request_, RunDirectory(claim.job())),
                .options = request_.options,
                .data = std::filesystem::absolute(request_.data).string()};
  config::TrainOptions& options = now.options;
  options.tensor.index = ranks_.place().tensor_index();
  TakenShare share = take_share(claim, options);
  resolve(options, now.model);
  resolve_automatic(claim, share.share, now.model, options);
  if (request_.from) check_tokenizer(request_.data, *request_.from);
  TrainingData data = TrainingData::open(request_.data, now.model, options.context);
  const data::Sampler sampler(data.train.size(), options.context, options.order, options.seed);
  const std::uint64_t steps = steps_of(options, sampler, replicas_.count);
  config::check_momentum(options.schedule, steps);
  now.identity = recognise_data(claim, data, now.model);
  check_same_run(ranks_, now, sources_of(request_, now, data, start));
  ranks_.join(replicas_.secondary, join_gpus(options));
  const config::ScheduleOptions given = options.schedule;
  options.schedule = config::resolve_schedule(
      given, start ? claim.recorded().options.schedule.total_steps : steps);
  if (start) check_same_mathematics(claim.recorded(), now);
  MadeModel model = start ? resume_model(now, claim.recorded().device) : make_model(now);
  now.device = model.device;
  for (const std::string& note : notes_at_start(now.model, given, options, steps)) {
    observer_.noted(note);
  }
  prepare_state(ranks_, claim, options.nvme);
  for (const std::string& note : claim.take_notes()) observer_.noted(note);
  return {.resume_at = start,
          .replicas = replicas_,
          .share = std::move(share),
          .data = std::move(data),
          .sampler = sampler,
          .steps = steps,
          .config = std::move(now),
          .model = std::move(model)};
}

/// Gives this rank its part of a machine that it shares with others: GPU, cores and drives. A run
/// that goes on has its state where it is.
TakenShare RunPreparation::take_share(const RunClaim& claim, config::TrainOptions& options) const {
  if (ranks_.alone()) return {};
  const config::DeviceKind device = options.device.value_or(usable_device());
  options.device_index = gpu_of_rank(ranks_, device);
  ShareRequest request;
  if (device == config::DeviceKind::cuda) {
    const offload::CudaDevice gpu = offload::query_cuda_device(options.device_index);
    request.gpu = gpu.pci_bus_id;
    request.gpu_node = gpu.numa_node;
  }
  const bool resumes = claim.resumes();
  request.directories =
      resumes ? claim.state_directories() : state_directories(options, claim.run().root());
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
MachinePart RunPreparation::part(const RunClaim& claim, const MachineShare& share) const {
  using SwapFiles = MachinePart::SwapFiles;
  return {.run = request_.run,
          .share = share,
          .swap_files = claim.resumes() ? SwapFiles::there : SwapFiles::to_come};
}

/// A resumed run keeps what it chose when it began.
void RunPreparation::resolve_automatic(const RunClaim& claim, const MachineShare& share,
                                       const model::ModelConfig& config,
                                       config::TrainOptions& options) {
  if (claim.resumes()) take_automatic(options, claim.recorded().options);
  const auto budgets = [&](const config::TrainOptions& tried, const plan::Workload& step) {
    return part(claim, share).budgets(tried, step, ranks_);
  };
  for (const std::string& line : choose_automatic(options, config, budgets)) {
    observer_.noted(line);
  }
}

/// A resumed run knows the file again, if nobody has touched it.
DataIdentity RunPreparation::recognise_data(const RunClaim& claim, const TrainingData& data,
                                            const model::ModelConfig& config) const {
  const DataIdentity known = claim.resumes() ? claim.recorded().identity : DataIdentity{};
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

/// Takes the claim once nothing fails any more.
PlannedRun RunPreparation::plan(OpenedRun opened, std::unique_ptr<RunClaim>&& claim) {
  const Note note = [this](const std::string& text) { observer_.noted(text); };
  // Ranks sharing cores measure simultaneously, so do not report each other as foreign load.
  const bool own_cores = ranks_.alone() || opened.share.binding->holds();
  OwnMachine machine({.config = opened.config.model,
                      .part = part(*claim, opened.share.share),
                      .ranks = ranks_,
                      .known = known_,
                      .note = note,
                      .note_load = own_cores ? note : Note([](const std::string&) {}),
                      .run = OwnMachine::OfRun{.model = opened.model.runtime,
                                               .device = opened.model.device,
                                               .state_directories = claim->state_directories()}});
  Planned plan =
      plan_rank(opened.config.model, opened.config.options, opened.replicas,
                claim->resumes() ? StageLayers::kept : StageLayers::chosen, machine, ranks_, note);
  opened.config.options.pipeline.parts = plan.options.pipeline.parts;
  nvme_swap::StoreOptions store;
  store.directories = claim->state_directories();
  store.owner = claim->manifest().state_id;
  store.engine = plan.options.io_engine;
  store.disk_gigabytes_per_second = plan.options.disk_gbps;
  machine.tune(plan, store);
  if (plan.options.commit_every == 0) {
    // Stages have other state and other places for it, and commit the same steps.
    plan.options.commit_every =
        largest_of(ranks_, planned_commit_every(plan.workload, plan.placement, plan.profile,
                                                plan.prediction.step_seconds));
  }
  return {.claim = std::move(claim),
          .opened = std::move(opened),
          .plan = std::move(plan),
          .store = std::move(store),
          .update_prefetch = machine.update_prefetch()};
}

}  // namespace

EngineSetup PlannedRun::engine_setup(RankGroups& ranks) const {
  return {.config = config(),
          .plan = plan,
          .store = {.options = store,
                    .start = opened.resume_at ? Start::resumed : Start::anew,
                    .resume_at = opened.resume_at},
          .update_prefetch = update_prefetch,
          .ranks = &ranks};
}

/// Other ranks hear of an error here before this rank gives its claim up.
PlannedRun plan_run(const TrainRequest& request, RankGroups& ranks, TrainObserver& observer) {
  RunPreparation preparation(request, ranks, observer);
  std::unique_ptr<RunClaim> claim = preparation.claim();
  return abandon_on_error(request.ranks, [&] {
    const comm::AtWork reading_and_measuring(request.ranks);
    OpenedRun opened = preparation.open(*claim);
    return preparation.plan(std::move(opened), std::move(claim));
  });
}

}  // namespace spillway::engine
