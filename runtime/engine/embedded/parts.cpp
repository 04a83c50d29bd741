#include "runtime/engine/embedded/parts.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/embedded/plan/gradient_landing.hpp"
#include "runtime/engine/embedded/plan/needs.hpp"
#include "runtime/engine/embedded/values/values_source.hpp"

namespace spillway::engine {
namespace {

/// A process that was killed is gone by then; one that trains is not.
constexpr std::chrono::milliseconds kLockPatience{1'000};

/// Throws `Error{invalid_argument}` also for what has no values to start from.
EmbeddedLayout layout_of(const EmbeddedOptions& options,
                         std::span<const EmbeddedParameter> parameters,
                         std::span<const FrozenTensor> frozen) {
  EmbeddedLayout layout = make_layout(options, parameters, frozen);
  for (const EmbeddedParameter& parameter : parameters) {
    check(parameter.values != nullptr, ErrorCode::invalid_argument,
          fmt::format("parameter \"{}\" has no values to start from", parameter.name));
  }
  return layout;
}

/// Returns what a store is made with that goes with the trainer.
nvme_swap::StoreOptions own_store(const EmbeddedOptions& options,
                                  const std::vector<std::filesystem::path>& directories) {
  nvme_swap::StoreOptions store;
  store.adapt = options.adapt;  // which copies of the state have too
  if (directories.empty()) return store;
  store.directories = directories;
  store.owner = random_run_id();
  store.remove_on_close = true;
  store.lock_patience = kLockPatience;
  return store;
}

/// Throws `Error{does_not_fit}` unless the machine has the memory.
EngineSetup engine_setup(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                         ExternalFramework& framework) {
  const plan::Placement placement = embedded_placement(options, layout);
  const EmbeddedNeeds needs = needs_of(options, layout, placement);
  check_memory(options, needs);
  // GCC 12 destroys a part of bare braces twice if a later one throws, so each has its type.
  return {
      .config = model::ModelConfig{},
      .plan = Planned{.options = train_options(options),
                      .workload = layout.workload,
                      .budgets = needs.total(),
                      .placement = placement},
      .store = StateStore{.options = own_store(options, options.nvme)},
      .external = ExternalModel{.framework = framework,
                                .groups = layout.groups,
                                .frozen_store = own_store(options, options.frozen_nvme)},
      .shared = SharedPools{.parameters = options.parameter_pages, .frozen = options.frozen_pages}};
}

void attempt(const auto& call) noexcept {
  try {
    call();
  } catch (const std::exception& error) {
    log_debug("a trainer ends after an error: {}", error.what());
  }
}

}  // namespace

EmbeddedParts::EmbeddedParts(const EmbeddedOptions& wanted,
                             std::span<const EmbeddedParameter> parameters,
                             std::span<const FrozenTensor> frozen)
    : options(wanted),
      layout(layout_of(options, parameters, frozen)),
      gate(layout.workload.blocks.size(), layout.streams() ? Ends::both : Ends::backward),
      engine(engine_setup(options, layout, gate), ModelRuntime{}),
      cycle(engine),
      values(engine),
      state(engine, values, layout),
      lists(engine, cycle, state, record),
      updates(options, layout, cycle),
      checkpoints(options, layout,
                  {.engine = engine, .cycle = cycle, .parameters = state, .updates = updates}),
      runner(lists, gate),
      passes(layout, values, gate, runner),
      deferred(layout, gate, runner, passes),
      gradient_counts(options, layout),
      gradients(options, layout,
                {.counts = gradient_counts,
                 .values = values,
                 .record = record,
                 .gate = gate,
                 .runner = runner}),
      step_end(options, layout,
               {.engine = engine,
                .values = values,
                .state = state,
                .record = record,
                .runner = runner,
                .passes = passes,
                .gradient_counts = gradient_counts,
                .gradients = gradients,
                .updates = updates}) {
  if (options.traces) record.trace(lists.most_ops() + copies_of_step(options, layout));
  for (const ParameterRange& each : layout.ranges) values.clear_padding(each);
  cycle.initialize(ValuesSource(options.dtype, layout.ranges, parameters));
  std::vector<FrozenPiece> given;
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    if (frozen[i].values == nullptr) continue;
    if (options.frozen_pages && frozen[i].unit) continue;  // it is there
    given.push_back({layout.frozen[i], {frozen[i].values, frozen[i].bytes.value()}});
  }
  values.write_frozen(std::move(given));
}

EmbeddedParts::~EmbeddedParts() { come_to_rest(); }

const ParameterRange& EmbeddedParts::range(std::uint32_t parameter) const {
  process.check();
  check_number("parameter", parameter, layout.ranges.size());
  return layout.ranges[parameter];
}

const FrozenRange& EmbeddedParts::frozen_range(std::uint32_t frozen) const {
  process.check();
  check_number("frozen tensor", frozen, layout.frozen.size());
  return layout.frozen[frozen];
}

void EmbeddedParts::check_device() const {
  process.check();
  check(!values.is_released(), ErrorCode::invalid_argument,
        "the memory of the device is released; call resume_device first");
}

void EmbeddedParts::rest() {
  process.check();
  passes.check_left();
  gradients.land();
  runner.park();
}

void EmbeddedParts::park() {
  check(!gradient_counts.any(), ErrorCode::invalid_argument,
        "gradients of this step are there already; call step or discard_gradients first");
  rest();
}

void EmbeddedParts::come_to_rest() noexcept {
  attempt([&] { gradients.land(); });
  attempt([&] { runner.park(); });
}

}  // namespace spillway::engine
