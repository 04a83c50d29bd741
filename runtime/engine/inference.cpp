#include "runtime/engine/inference.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/engine/machine/budgets.hpp"
#include "runtime/engine/machine/compute_device.hpp"

namespace spillway::engine {
namespace {

std::span<std::int32_t> as_tokens(std::span<std::byte> bytes) {
  return {reinterpret_cast<std::int32_t*>(bytes.data()), bytes.size() / sizeof(std::int32_t)};
}

}  // namespace

Inference::Inference(const model::ModelConfig& config, const InferenceOptions& options,
                     const model::ParameterSource& source)
    : config_(config), options_(options) {
  config::TrainOptions train;
  train.compute = options_.compute;
  train.micro_batch = options_.batch;
  train.context = options_.context;
  train.compute_threads = options_.compute_threads;
  train.device = options_.device;
  train.device_memory = options_.device_memory;
  train.host_memory = options_.host_memory;
  resolve(train, config_);
  options_.context = train.context;
  model_ = make_model_runtime(config_, train, products_of(options_.trained_on));
  const FixedNeeds needed = needs();
  check_fits(needed, train, read_memory_budget(), free_memory_of_device(train),
             "fewer tokens at once (eval: --batch and --context; generate: --tokens and a shorter "
             "prompt)");
  // The whole model is resident and every allocation below is part of the needs.
  backend_ =
      make_backend(train, {.device = needed.device, .host = needed.host, .nvme = {}}, nullptr);
  stream_ = backend_->make_stream("compute");
  model_.ops->bind_stream(stream_->native());
  constants_ = {*model_.transformer, *backend_, *stream_};
  const model::Transformer& transformer = *model_.transformer;
  for (auto& boundary : boundary_) boundary = {*backend_, transformer.boundary_bytes()};
  workspace_ = {*backend_, transformer.workspace_bytes()};
  tokens_ = {*backend_, token_bytes()};
  loss_ = {*backend_, Bytes{sizeof(double)}};
  host_tokens_ = {*backend_, token_bytes()};
  host_loss_ = {*backend_, Bytes{sizeof(double)}};
  if (options_.batch == 1) {
    logits_ = {*backend_, row_bytes() * options_.context};
    host_logits_ = {*backend_, row_bytes()};
  }
  load(source);
}

Inference::~Inference() = default;

/// Inputs and targets.
Bytes Inference::token_bytes() const {
  return Bytes{2 * std::uint64_t{options_.batch} * options_.context * sizeof(std::int32_t)};
}

/// Logits of one token. Those of a single window are looked at; evaluation needs the loss alone.
Bytes Inference::row_bytes() const {
  return Bytes{std::uint64_t{config_.vocab_size} * sizeof(float)};
}

FixedNeeds Inference::needs() const {
  const model::Transformer& transformer = *model_.transformer;
  const std::uint64_t width = size_of(options_.compute);
  std::uint64_t resident = 0, largest = 0;
  for (const model::BlockLayout& block : transformer.layout().blocks) {
    resident += block.padded_parameters.value() * width;
    largest = std::max(largest, block.padded_parameters.value());
  }
  const Bytes shared = token_bytes() + Bytes{sizeof(double)};
  // A block at a time is read in fp32 and rounded on its way to the device.
  FixedNeeds needed{.device = Bytes{resident} + transformer.boundary_bytes() * 2U +
                              transformer.workspace_bytes() + transformer.constant_bytes() + shared,
                    .host = Bytes{largest * (sizeof(float) + width)} + options_.source_bytes +
                            std::max(shared, transformer.constant_bytes())};
  if (options_.batch == 1) {
    needed.device += row_bytes() * options_.context;
    needed.host += row_bytes();
  }
  return needed;
}

void Inference::load(const model::ParameterSource& source) {
  std::vector<float> masters;
  const auto& blocks = model_.transformer->layout().blocks;
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    masters.resize(blocks[block].padded_parameters.value());
    source.read(BlockIndex{block}, ElementCount{}, masters);
    const Bytes bytes{masters.size() * size_of(options_.compute)};
    offload::PinnedMemory rounded(*backend_, bytes);
    cpu_adam::cast_parameters(cpu_adam::best_isa(), options_.compute, masters.data(),
                              rounded.host().data(), masters.size());
    parameters_.emplace_back(*backend_, bytes);
    stream_->upload(parameters_.back().device(), rounded.host());
    stream_->synchronize();
  }
}

offload::DeviceSpan<std::byte> Inference::parameters(std::uint32_t block) const {
  return parameters_[block].device();
}

/// Uploads the tokens and runs all blocks but the head; the result is in the boundary of the last.
void Inference::forward() {
  stream_->upload(tokens_.device(), host_tokens_.host());
  const auto head = static_cast<std::uint32_t>(parameters_.size() - 1);
  const auto tokens = tokens_.device().as<std::int32_t>();
  for (std::uint32_t block = 0; block < head; ++block) {
    stream_->submit([this, block, tokens] {
      model::ForwardArguments arguments;
      arguments.block = block;
      arguments.parameters = parameters(block);
      arguments.tokens = tokens.subspan(0, tokens.size() / 2);
      if (block > 0) arguments.input = boundary_[(block + 1) % 2].device();
      arguments.output = boundary_[block % 2].device();
      arguments.workspace = workspace_.device();
      model_.transformer->forward(arguments);
    });
  }
}

Evaluation Inference::evaluate(const data::TokenFile& tokens) {
  const std::uint64_t context = options_.context;
  check(tokens.size() > context, ErrorCode::invalid_argument,
        fmt::format("the file holds {} tokens, fewer than one window of {} and its targets",
                    tokens.size(), context));
  const std::uint64_t windows = data::window_count(tokens, options_.context);
  const auto head = static_cast<std::uint32_t>(parameters_.size() - 1);
  const data::MicroBatch batch{as_tokens(host_tokens_.host()), options_.context,
                               config_.vocab_size};
  double sum = 0;
  for (std::uint64_t first = 0; first < windows; first += options_.batch) {
    data::read_windows(tokens, first, batch);
    forward();
    stream_->submit([this, head] {
      const auto ids = tokens_.device().as<std::int32_t>();
      model::LossArguments arguments;
      arguments.parameters = parameters(head);
      if (config_.tied_head) arguments.tied_parameters = parameters(0);
      arguments.targets = ids.subspan(ids.size() / 2, ids.size() / 2);
      arguments.input = boundary_[(head + 1) % 2].device();
      arguments.loss_sum = loss_.device().as<double>();
      arguments.workspace = workspace_.device();
      model_.transformer->loss(arguments);
    });
    stream_->download(host_loss_.host(), loss_.device());
    stream_->synchronize();
    sum += *reinterpret_cast<const double*>(host_loss_.host().data());
  }
  const std::uint64_t targets = windows * context;
  return {.loss = sum / static_cast<double>(targets), .tokens = targets};
}

std::span<const float> Inference::next_logits(std::span<const std::int32_t> tokens) {
  check(options_.batch == 1 && !tokens.empty(), ErrorCode::invalid_argument,
        "generation needs a prompt and works on one window at a time");
  const std::size_t used = std::min<std::size_t>(tokens.size(), options_.context);
  const std::span<std::int32_t> window = as_tokens(host_tokens_.host());
  std::fill(window.begin(), window.end(), 0);
  // Attention is causal: what stands after the last token does not reach it.
  std::copy(tokens.end() - static_cast<std::ptrdiff_t>(used), tokens.end(), window.begin());
  forward();
  const auto head = static_cast<std::uint32_t>(parameters_.size() - 1);
  stream_->submit([this, head] {
    model::Transformer::LogitsArguments arguments;
    arguments.parameters = parameters(head);
    if (config_.tied_head) arguments.tied_parameters = parameters(0);
    arguments.input = boundary_[(head + 1) % 2].device();
    arguments.logits = logits_.device().as<float>();
    arguments.all_positions = true;
    arguments.workspace = workspace_.device();
    model_.transformer->logits(arguments);
  });
  const std::size_t row = std::size_t{config_.vocab_size} * sizeof(float);
  stream_->download(host_logits_.host(), logits_.device().subspan((used - 1) * row, row));
  stream_->synchronize();
  return {reinterpret_cast<const float*>(host_logits_.host().data()), config_.vocab_size};
}

}  // namespace spillway::engine
