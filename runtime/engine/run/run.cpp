#include "runtime/engine/run/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "offload/cuda/cuda_device.hpp"
#include "runtime/base/cuda_library_directories.hpp"
#include "runtime/config/schedule.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/device/model_runtime.hpp"
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

/// Makes a run ready, stage by stage.
class RunPreparation {
 public:
  RunPreparation(const TrainRequest& request, RankGroups& ranks, RunClaim& claim,
                 TrainObserver& observer)
      : request_(request),
        ranks_(ranks),
        claim_(claim),
        observer_(observer),
        replicas_(own_replica(request, ranks.place())),
        known_(request.profile),
        start_(agree_on_start(ranks, claim)) {}

  [[nodiscard]] Run prepare();

 private:
  [[nodiscard]] TakenShare take_share(config::TrainOptions& options) const;
  void resolve_options(const MachineShare& share, RunConfig& config);
  void agree(const TrainingData& data, std::uint64_t steps, RunConfig& config);
  [[nodiscard]] DataIdentity recognise_data(const TrainingData& data,
                                            const model::ModelConfig& config) const;
  [[nodiscard]] std::unique_ptr<comm::DeviceCommunicator> join_gpus(
      const config::TrainOptions& options) const;
  [[nodiscard]] ModelRuntime make_model(RunConfig& config) const;
  void note_other_device(const DeviceRecord& now) const;
  [[nodiscard]] std::size_t note_products(const DeviceRecord& device) const;
  void note(const std::vector<std::string>& lines) const;
  [[nodiscard]] MachinePart part(const MachineShare& share) const;
  [[nodiscard]] EngineSetup plan(const TakenShare& share, RunConfig& config, ModelRuntime& model);
  [[nodiscard]] StateStore store(const Planned& plan, const DriveTunings& drives) const;

  const TrainRequest& request_;
  RankGroups& ranks_;
  RunClaim& claim_;
  TrainObserver& observer_;
  const plan::Replicas replicas_;         ///< of the stage; which of them this rank is
  MachineTuning known_;                   ///< what earlier runs measured of this machine
  const std::optional<StepIndex> start_;  ///< absent: the run begins
};

/// Whatever refuses this start does so before a file of the run is changed.
Run RunPreparation::prepare() {
  RunConfig config{.model = model_of(request_, RunDirectory(claim_.job())),
                   .options = request_.options,
                   .data = std::filesystem::absolute(request_.data).string()};
  const config::TrainOptions& options = config.options;
  TakenShare share = take_share(config.options);
  resolve_options(share.share, config);
  if (request_.from) check_tokenizer(request_.data, *request_.from);
  TrainingData data = TrainingData::open(request_.data, config.model, options.context);
  const data::Sampler sampler(data.train.size(), options.context, options.order, options.seed);
  const std::uint64_t steps = steps_of(options, sampler, replicas_.count);
  agree(data, steps, config);

  ModelRuntime model = make_model(config);
  if (claim_.resumes()) note_other_device(config.device);
  const std::size_t measured = claim_.resumes() ? 0 : note_products(config.device);
  note(notes_at_start(config.model, request_.options.schedule, options, steps));

  prepare_state(ranks_, claim_, options.nvme);
  note(claim_.take_notes());
  EngineSetup setup = plan(share, config, model);
  return {.share = std::move(share),
          .data = std::move(data),
          .sampler = sampler,
          .steps = steps,
          .config = std::move(config),
          .measured_products = measured,
          .trainer = {std::move(setup), std::move(model)}};
}

void RunPreparation::note(const std::vector<std::string>& lines) const {
  for (const std::string& line : lines) observer_.noted(line);
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

/// A resumed run keeps what it chose when it began.
void RunPreparation::resolve_options(const MachineShare& share, RunConfig& config) {
  resolve(config.options, config.model);
  if (config.options.device_generation) {  // ranks plan alike
    config.options.device_generation = common_to(ranks_, *config.options.device_generation);
  }
  if (claim_.resumes()) take_automatic(config.options, claim_.recorded().options);
  const auto budgets = [&](const config::TrainOptions& tried, const plan::Workload& step) {
    return part(share).budgets(tried, step, ranks_);
  };
  note(choose_automatic(config.options, config.model, replicas_, budgets));
}

/// Checks that all ranks start the same run, and joins their groups. A schedule that was to end
/// with the run keeps the end that it started with.
void RunPreparation::agree(const TrainingData& data, std::uint64_t steps, RunConfig& config) {
  config::ScheduleOptions& schedule = config.options.schedule;
  config::check_momentum(schedule, steps);
  config.identity = recognise_data(data, config.model);
  check_same_run(ranks_, config, sources_of(request_, config, data, start_));
  ranks_.join(replicas_.secondary, join_gpus(config.options));
  const bool resumes = claim_.resumes();
  schedule = config::resolve_schedule(
      schedule, resumes ? claim_.recorded().options.schedule.total_steps : steps);
  if (resumes) check_same_mathematics(claim_.recorded(), config);
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

/// Makes the operators before a byte is written: a device that cannot run leaves no run behind.
ModelRuntime RunPreparation::make_model(RunConfig& config) const {
  std::optional<DeviceRecord> origin;
  if (!claim_.resumes() && request_.from && RunDirectory(*request_.from).exists()) {
    origin = RunDirectory(*request_.from).read_config().device;
  }
  ModelRuntime model = make_model_runtime(
      config.model, config.options,
      {.products =
           choose_products({.resumed = claim_.resumes() ? &claim_.recorded().device : nullptr,
                            .continued = origin ? &*origin : nullptr,
                            .measured = known_.products()}),
       .tensor_index = ranks_.place().tensor_index()});
  config.device = record_of(config.options, *model.ops);
  return model;
}

void RunPreparation::note_other_device(const DeviceRecord& now) const {
  const DeviceRecord& recorded = claim_.recorded().device;
  const auto text = [](const DeviceRecord& record) {
    return fmt::format("{} {} {}", record.name, record.libraries, record.attention);
  };
  // Older runs did not record the attention implementation.
  const bool attends_alike = recorded.attention.empty() || recorded.attention == now.attention;
  if (now.name == recorded.name && now.libraries == recorded.libraries && attends_alike) return;
  observer_.noted(
      fmt::format("the run began on {}; on {} its bits may differ from those of an "
                  "uninterrupted run",
                  text(recorded), text(now)));
}

/// Returns how many products use algorithms of the machine profile.
std::size_t RunPreparation::note_products(const DeviceRecord& device) const {
  const std::size_t measured = products_of(device).common(known_.products());
  if (measured > 0) {
    observer_.noted(
        fmt::format("{} matrix products use algorithms that were measured on this "
                    "machine ({})",
                    measured, known_.file().string()));
  }
  return measured;
}

/// The swap files of a resumed run are there already.
MachinePart RunPreparation::part(const MachineShare& share) const {
  using SwapFiles = MachinePart::SwapFiles;
  return {.run = request_.run,
          .share = share,
          .swap_files = claim_.resumes() ? SwapFiles::there : SwapFiles::to_come};
}

/// Makes the model again if the plan bounds its gradients of scores or chooses its micro-batch.
EngineSetup RunPreparation::plan(const TakenShare& share, RunConfig& config, ModelRuntime& model) {
  const Note note = [this](const std::string& text) { observer_.noted(text); };
  // Ranks sharing cores measure simultaneously, so do not report each other as other load.
  const bool own_cores = ranks_.alone() || share.binding->holds();
  RunMachine machine({.config = config.model,
                      .part = part(share.share),
                      .ranks = ranks_,
                      .known = known_,
                      .note = note,
                      .note_load = own_cores ? note : Note([](const std::string&) {})},
                     model, claim_.state_directories());
  Planned plan =
      plan_rank(config.model, config.options, replicas_,
                claim_.resumes() ? StageLayers::kept : StageLayers::chosen, machine, ranks_, note);
  const bool resized = plan.options.micro_batch != config.options.micro_batch;
  config.options = plan.options;  // which has the layers of the stages, and the step's shape
  if (plan.score_gradients || resized) {
    model = make_model_runtime(
        config.model, plan.options,
        {.products = products_of(config.device),
         .score_gradients = plan.score_gradients.value_or(model::cuda::kScoreGradients),
         .tensor_index = plan.place.tensor_index()});
  }
  StateStore state = store(plan, machine.tuning().drives);
  return {.config = config.model,
          .plan = std::move(plan),
          .store = std::move(state),
          .update_prefetch = machine.tuning().update_prefetch,
          .ranks = &ranks_};
}

StateStore RunPreparation::store(const Planned& plan, const DriveTunings& drives) const {
  nvme_swap::StoreOptions options;
  options.directories = claim_.state_directories();
  options.owner = claim_.manifest().state_id;
  options.engine = plan.options.io_engine;
  options.disk_gigabytes_per_second = plan.options.disk_gbps;
  tune_store(drives, options);
  options.weights =
      disk_weights(drives, options.directories, plan::slots_on_disk(plan.workload, plan.placement));
  return {.options = std::move(options),
          .start = start_ ? Start::resumed : Start::anew,
          .resume_at = start_};
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

Run prepare_run(const TrainRequest& request, RankGroups& ranks, RunClaim& claim,
                TrainObserver& observer) {
  return RunPreparation(request, ranks, claim, observer).prepare();
}

}  // namespace spillway::engine
