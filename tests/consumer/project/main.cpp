// What a user of the installed package does first: describe a model, and ask what its training
// takes.
#include <cstdio>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"

int main() {
  using namespace spillway;
  try {
    const model::ModelConfig model = model::parse_model_config(
        R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 128,
            "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})",
        "consumer");
    config::TrainOptions options = config::parse_train_config("{}", "consumer").options;
    engine::resolve(options, model);
    const plan::Workload workload = engine::make_workload(model, options);
    const plan::Placement placement =
        engine::place(model, options, workload, {parse_bytes("1GiB"), 1_GiB, 1_GiB});
    std::uint64_t parameters = 0;
    for (const plan::BlockShape& block : workload.blocks) parameters += block.parameters.value();
    std::printf("%llu parameters in %zu blocks\n", static_cast<unsigned long long>(parameters),
                placement.blocks.size());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
