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
#include "runtime/engine/planned_run/own_machine.hpp"
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

/// Fills a PlannedRun, in the order of its functions.
class RunPreparation {
 public:
  RunPreparation(const TrainRequest& request, TrainObserver& observer, PlannedRun& run)
      : request_(request),
        ranks_(run.ranks),
        observer_(observer),
        run_(run),
        machine_(request, observer, run) {}

  void open();
  void plan();

 private:
  void begin();
  void resume();
  void take_share();
  void show_shares(const std::string& gpu);
  [[nodiscard]] std::unique_ptr<comm::DeviceCommunicator> join_gpus() const;
  void resolve_automatic();
  [[nodiscard]] DataIdentity recognise_data() const;
  void make_model();
  void resume_model(const DeviceRecord& recorded);

  const TrainRequest& request_;
  RankGroups& ranks_;
  TrainObserver& observer_;
  PlannedRun& run_;
  OwnMachine machine_;
};

/// Whatever refuses this start does so before a file of the run is changed.
void RunPreparation::open() {
  const std::optional<StepIndex> start = agree_on_start(ranks_, run_.claim);
  run_.run_config.model = model_of(request_, RunDirectory(run_.claim.job()));
  run_.plan.options = request_.options;
  run_.plan.options.tensor.index = ranks_.place().tensor_index();
  take_share();
  resolve(run_.plan.options, run_.config());
  resolve_automatic();
  if (request_.from) check_tokenizer(request_.data, *request_.from);
  run_.data.emplace(TrainingData::open(request_.data, run_.config(), run_.plan.options.context));
  run_.sampler.emplace(run_.data->train.size(), run_.plan.options.context, run_.plan.options.order,
                       run_.plan.options.seed);
  run_.steps = steps_of(run_.plan.options, *run_.sampler, run_.replicas.count);
  config::check_momentum(run_.plan.options.schedule, run_.steps);
  run_.store_options.engine = run_.plan.options.io_engine;
  run_.store_options.disk_gigabytes_per_second = run_.plan.options.disk_gbps;
  RunConfig& now = run_.run_config;
  now.options = run_.plan.options;
  now.data = std::filesystem::absolute(request_.data).string();
  now.identity = recognise_data();
  check_same_run(ranks_, now, sources_of(request_, now, *run_.data, start));
  ranks_.join(run_.replicas.secondary, join_gpus());
  const config::ScheduleOptions given = run_.plan.options.schedule;
  run_.resume_at = start;
  start ? resume() : begin();
  for (const std::string& note :
       notes_at_start(run_.config(), given, run_.plan.options, run_.steps)) {
    observer_.noted(note);
  }
  prepare_state(ranks_, run_.claim, run_.plan.options.nvme);
  run_.store_options.directories = run_.claim.state_directories();
  run_.store_options.owner = run_.claim.manifest().state_id;
  for (const std::string& note : run_.claim.take_notes()) observer_.noted(note);
}

void RunPreparation::begin() {
  run_.plan.options.schedule = config::resolve_schedule(run_.plan.options.schedule, run_.steps);
  run_.run_config.options = run_.plan.options;
  make_model();
}

/// A schedule that was to end with the run keeps the end that it started with.
void RunPreparation::resume() {
  const RunConfig& recorded = run_.claim.recorded();
  run_.plan.options.schedule =
      config::resolve_schedule(run_.plan.options.schedule, recorded.options.schedule.total_steps);
  run_.run_config.options = run_.plan.options;
  check_same_mathematics(recorded, run_.run_config);
  resume_model(recorded.device);
}

/// Gives this rank its part of a machine that it shares with others: GPU, cores and drives. A run
/// that goes on has its state where it is.
void RunPreparation::take_share() {
  if (ranks_.alone()) return;
  config::TrainOptions& options = run_.plan.options;
  const config::DeviceKind device = options.device.value_or(usable_device());
  options.device_index = gpu_of_rank(ranks_, device);
  ShareRequest request;
  if (device == config::DeviceKind::cuda) {
    const offload::CudaDevice gpu = offload::query_cuda_device(options.device_index);
    request.gpu = gpu.pci_bus_id;
    request.gpu_node = gpu.numa_node;
  }
  const bool resumes = run_.claim.resumes();
  request.directories = resumes ? run_.claim.state_directories()
                                : state_directories(options, run_.claim.run().root());
  request.divides_directories = !resumes;
  run_.share = share_machine(ranks_, request);
  if (options.threads == 0) options.threads = run_.share.threads;
  if (options.compute_threads == 0) options.compute_threads = run_.share.threads;
  if (!options.nvme.empty() && !resumes) options.nvme = run_.share.directories;
  run_.binding.emplace(run_.share.core_share.cores);
  show_shares(request.gpu.value_or(""));
}

/// Gathers what the plan shows of all ranks.
void RunPreparation::show_shares(const std::string& gpu) {
  ShownShare mine{.machine = machine_name().data(),
                  .nodes = {},
                  .cores = static_cast<std::uint32_t>(run_.share.core_share.cores.size()),
                  .bound = run_.binding->holds(),
                  .threads = run_.plan.options.threads,
                  .gpu = gpu,
                  .state = {}};
  for (const Core& core : run_.share.core_share.cores) {
    const std::uint32_t node = core.node.value();
    if (std::ranges::find(mine.nodes, node) == mine.nodes.end()) mine.nodes.push_back(node);
  }
  for (const auto& directory : run_.share.directories) mine.state.push_back(directory.string());
  run_.shares = gather_shares(ranks_, mine);
}

/// All ranks have the same device by now. A machine that lacks NCCL ends the run here.
std::unique_ptr<comm::DeviceCommunicator> RunPreparation::join_gpus() const {
  if (ranks_.alone() || run_.plan.options.device != config::DeviceKind::cuda) return nullptr;
  check(!config::has_stale_weights(run_.plan.options.pipeline.schedule), ErrorCode::not_supported,
        "this version runs schedules with stale weights on the host alone; use another "
        "spillway.pipeline_schedule, or --device host");
  comm::Communicator& job = *ranks_.host(RankGroups::Group::job);
  return std::make_unique<comm::DeviceCommunicator>(
      job, comm::DeviceCommunicatorOptions{.timeout_ms = job.timeout_ms(),
                                           .library_directories = cuda_library_directories()});
}

/// A resumed run keeps what it chose when it began.
void RunPreparation::resolve_automatic() {
  if (run_.claim.resumes()) take_automatic(run_.plan.options, run_.claim.recorded().options);
  const auto budgets = [this](const config::TrainOptions& options, const plan::Workload& step) {
    return machine_.budgets(options, step);
  };
  for (const std::string& line : choose_automatic(run_.plan.options, run_.config(), budgets)) {
    observer_.noted(line);
  }
}

/// A resumed run knows the file again, if nobody has touched it.
DataIdentity RunPreparation::recognise_data() const {
  const DataIdentity known = run_.claim.resumes() ? run_.claim.recorded().identity : DataIdentity{};
  const data::FileStamp file = run_.data->train.stamp();
  if (known.stamp != file && file.bytes > kLongRead) {
    observer_.noted(fmt::format("reading all {} of train.bin once, to know it again",
                                format_bytes(Bytes{file.bytes})));
  }
  return run_.data->identity(run_.config().vocab_size, known);
}

/// Operators before a byte is written: a device that cannot run leaves no run behind.
void RunPreparation::make_model() {
  std::optional<DeviceRecord> origin;
  if (request_.from && RunDirectory(*request_.from).exists()) {
    origin = RunDirectory(*request_.from).read_config().device;
  }
  run_.model = make_model_runtime(run_.config(), run_.plan.options,
                                  choose_products({.continued = origin ? &*origin : nullptr,
                                                   .measured = run_.known.products()}));
  run_.run_config.device = record_of(run_.plan.options, *run_.model.ops);
  run_.measured_products = products_of(run_.run_config.device).common(run_.known.products());
  if (run_.measured_products > 0) {
    observer_.noted(
        fmt::format("{} matrix products use algorithms that were measured on this "
                    "machine ({})",
                    run_.measured_products, run_.known.file().string()));
  }
}

void RunPreparation::resume_model(const DeviceRecord& recorded) {
  run_.model = make_model_runtime(
      run_.config(), run_.plan.options,
      choose_products({.resumed = &recorded, .measured = run_.known.products()}));
  run_.run_config.device = record_of(run_.plan.options, *run_.model.ops);
  const auto text = [](const DeviceRecord& device) {
    return fmt::format("{} {} {}", device.name, device.libraries, device.attention);
  };
  const DeviceRecord& device = run_.run_config.device;
  // Older runs did not record the attention implementation.
  const bool attends_alike = recorded.attention.empty() || recorded.attention == device.attention;
  if (device.name != recorded.name || device.libraries != recorded.libraries || !attends_alike) {
    observer_.noted(
        fmt::format("the run began on {}; on {} its bits may differ from those of an "
                    "uninterrupted run",
                    text(recorded), text(device)));
  }
}

void RunPreparation::plan() {
  run_.plan = plan_rank(run_.config(), std::move(run_.plan.options), run_.replicas,
                        run_.claim.resumes() ? StageLayers::kept : StageLayers::chosen, machine_,
                        ranks_, [this](const std::string& text) { observer_.noted(text); });
  Planned& plan = run_.plan;
  run_.run_config.options.pipeline.parts = plan.options.pipeline.parts;
  machine_.tune_run();
  if (plan.options.commit_every == 0) {
    // Stages have other state and other places for it, and commit the same steps.
    plan.options.commit_every =
        largest_of(ranks_, planned_commit_every(plan.workload, plan.placement, plan.profile,
                                                plan.prediction.step_seconds));
  }
}

plan::Replicas own_replica(const TrainRequest& request, const plan::GridPlace& place) {
  if (request.ranks == nullptr) return {};
  plan::Replicas replicas = replicas_of(request.options, place.grid.replicas);
  replicas.index = place.replica();
  return replicas;
}

/// The folders of the other ranks lie in that of rank 0, which claims its own first.
RunClaim::Request claim_after_first(const TrainRequest& request, RankGroups& ranks,
                                    const plan::Replicas& replicas) {
  return {.run = request.run,
          .resume = request.resume,
          .nvme = request.options.nvme,
          .part = {.ranks = ranks.place().grid.ranks(),
                   .rank = ranks.place().rank,
                   .sharding = replicas.sharding},
          .made = ranks.leads() ? 0 : ranks.first(std::uint64_t{0})};
}

}  // namespace

PlannedRun::PlannedRun(const TrainRequest& request, RankGroups& ranks_of_job)
    : ranks(ranks_of_job),
      replicas(own_replica(request, ranks.place())),
      claim(claim_after_first(request, ranks, replicas)),
      known(request.profile) {
  if (ranks.leads()) static_cast<void>(ranks.first(claim.made()));
}

EngineSetup PlannedRun::engine_setup() const {
  return {.config = config(),
          .plan = plan,
          .store = {.options = store_options,
                    .start = resume_at ? Start::resumed : Start::anew,
                    .resume_at = resume_at},
          .update_prefetch = update_prefetch,
          .ranks = &ranks};
}

std::unique_ptr<PlannedRun> plan_run(const TrainRequest& request, RankGroups& ranks,
                                     TrainObserver& observer) {
  auto run = std::make_unique<PlannedRun>(request, ranks);
  RunPreparation preparation(request, observer, *run);
  abandon_on_error(request.ranks, [&] {
    const comm::AtWork reading_and_measuring(request.ranks);
    preparation.open();
    preparation.plan();
  });
  return run;
}

}  // namespace spillway::engine
