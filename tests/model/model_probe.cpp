// model_probe MODEL_DIR TOKENS OUT DTYPE BATCH SEQUENCE THREADS kept|recomputed MICRO_BATCHES
// KERNELS host|cuda. Loads a Hugging Face checkpoint, runs it forward and backward on MICRO_BATCHES
// micro-batches and writes loss, logits of the last one and every gradient by name, for a peer to
// compare with. TOKENS: int32, for each micro-batch inputs [batch, sequence] then targets. OUT:
// OUT.json {"loss", "tensors": {name: [first, count]}} over the fp32 values of OUT.bin. Exits with
// 77 where cuda is asked for and there is no GPU.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "tests/model/cuda_test_device.hpp"
#include "tests/model/model_harness.hpp"

namespace spillway::model {
namespace {

class Output {
 public:
  explicit Output(const std::string& path) : path_(path), file_(path + ".bin", std::ios::binary) {}
  void add(const std::string& name, std::span<const float> values) {
    tensors_[name] = {written_, values.size()};
    file_.write(reinterpret_cast<const char*>(values.data()),
                static_cast<std::streamsize>(values.size_bytes()));
    written_ += values.size();
  }
  void finish(double loss) {
    const nlohmann::json document = {{"loss", loss}, {"tensors", tensors_}};
    std::ofstream(path_ + ".json") << document.dump();
    file_.close();
    check(file_.good(), ErrorCode::io_error, "write " + path_ + ".bin failed");
  }

 private:
  std::string path_;
  std::ofstream file_;
  nlohmann::json tensors_ = nlohmann::json::object();
  std::size_t written_ = 0;
};

std::vector<std::int32_t> read_tokens(const std::string& path, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(tokens.data()), static_cast<std::streamsize>(count * 4));
  check(file.good(), ErrorCode::io_error, path + " is too short");
  return tokens;
}

void add_gradients(ModelHarness& model, const ModelConfig& config, float loss_scale,
                   Output& output) {
  for (std::uint32_t block = 0; block < model.blocks(); ++block) {
    const BlockLayout& layout = model.layout().blocks[block];
    const std::span<float> gradients = model.gradients(block);
    if (block == 0 && config.tied_head) {
      const std::span<float> tied = model.tied_gradients();
      for (std::size_t i = 0; i < tied.size(); ++i) gradients[i] += tied[i];
    }
    for (float& value : gradients) value /= loss_scale;
    for (const ParameterTensor& tensor : layout.tensors) {
      output.add(tensor.name, gradients.subspan(tensor.first.value(), tensor.count.value()));
    }
    for (std::uint64_t i = layout.parameters.value(); i < layout.padded_parameters.value(); ++i) {
      check(gradients[i] == 0, ErrorCode::internal, "padding has a gradient");
    }
  }
}

constexpr int kSkipped = 77;

std::unique_ptr<Ops> make_probe_ops(std::span<char*> arguments) {
  const DType compute = parse_dtype(arguments[4]);
  if (std::string(arguments[11]) == "cuda") {
    use_gpu();
    return make_gpu_ops({.compute = compute});
  }
  return host::make_ops(
      {.compute_threads = std::stoi(arguments[7]), .compute = compute, .kernels = arguments[10]});
}

int run(std::span<char*> arguments) {
  check(arguments.size() == 12, ErrorCode::invalid_argument, "see the head of model_probe.cpp");
  const std::string directory = arguments[1];
  const BatchShape batch{.batch = static_cast<std::uint32_t>(std::stoul(arguments[5])),
                         .sequence = static_cast<std::uint32_t>(std::stoul(arguments[6]))};
  const auto activations =
      std::string(arguments[8]) == "kept" ? Activations::kept : Activations::recomputed;
  const std::size_t micro_batches = std::stoul(arguments[9]);
  const ModelConfig config = load_model_config(directory + "/config.json");
  if (const std::string reason = why_no_gpu();
      std::string(arguments[11]) == "cuda" && !reason.empty()) {
    fmt::print(stderr, "model_probe: {}\n", reason);
    return kSkipped;
  }
  ModelHarness model(config, batch, make_probe_ops(arguments));
  const CheckpointReader reader(directory, config, model.layout());
  for (std::uint32_t block = 0; block < model.blocks(); ++block) {
    std::vector<float> values(model.layout().blocks[block].parameters.value());
    reader.read(BlockIndex{block}, ElementCount{0}, values);
    model.set_parameters(block, values);
  }
  const std::size_t count = std::size_t{batch.batch} * batch.sequence;
  const std::vector<std::int32_t> all = read_tokens(arguments[2], 2 * count * micro_batches);
  // fp16 gradients need a loss scale, as in training; a power of two changes nothing else.
  const float loss_scale = parse_dtype(arguments[4]) == DType::fp16 ? 4096.0F : 1.0F;
  const float scale = loss_scale / static_cast<float>(count * micro_batches);
  double loss = 0;
  for (std::size_t i = 0; i < micro_batches; ++i) {
    const std::span<const std::int32_t> tokens(all.data() + 2 * i * count, count);
    const std::span<const std::int32_t> targets(tokens.data() + count, count);
    loss += model.step(tokens, targets, scale, i == 0, activations);
  }
  Output output(arguments[3]);
  output.add("logits", model.logits(true));
  output.add("last_logits", model.logits(false));
  add_gradients(model, config, loss_scale, output);
  output.finish(loss / static_cast<double>(count * micro_batches));
  return 0;
}

}  // namespace
}  // namespace spillway::model

int main(int argc, char** argv) {
  try {
    return spillway::model::run({argv, static_cast<std::size_t>(argc)});
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_probe: {}\n", error.what());
    return 1;
  }
}
