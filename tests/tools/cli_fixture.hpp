// A text, a tiny model and configurations for it: what the tests of the program train.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/tools/program.hpp"

namespace spillway::testing {

inline constexpr const char* kModel = R"({
  "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256,
  "n_positions": 16, "n_embd": 48, "n_layer": 2, "n_head": 2, "activation_function": "gelu_new",
  "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
  "tie_word_embeddings": true})";

// Of the disk, a start measures as much as fits into this memory.
inline constexpr const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.99]}},
  "spillway": {"context": 16, "seed": 3, "tile_parameters": 8192, "eval_every": 10,
                "device_memory": "8MiB", "host_memory": "8MiB"}})";

// A public ds_config.json's shape: comments, strings and offload sections as people have them.
inline constexpr const char* kDeepSpeed = R"({
  // ZeRO-2 with everything off the device
  "train_micro_batch_size_per_gpu": 4,  # per GPU
  "gradient_accumulation_steps": 2,
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12},
  "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}},
  "zero_optimization": {
    "stage": 2, "overlap_comm": true, /* streams */
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "offload_param": {"device": "cpu", "pin_memory": true}
  }
})";

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ("spillway_cli_" + std::to_string(::getpid()));
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "Blessed are they that mourn, for line " + std::to_string(i * i % 97) + ".\n";
    write_all(path("text.txt"), text);
    write_all(path("model.json"), kModel);
    write_all(path("train.json"), kConfig);
    write_all(path("deepspeed.json"), kDeepSpeed);
    const Answer answer =
        run({"data", path("text.txt"), "--out", path("data"), "--tokenizer", "bytes", "--json"});
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  [[nodiscard]] std::string path(const std::string& name) const { return directory_ / name; }
  /// An empty directory of that name, as a mounted drive is.
  [[nodiscard]] std::string drive(const std::string& name) const {
    std::filesystem::create_directories(directory_ / name);
    return path(name);
  }
  /// The only swap file of a run whose state lies in `directory`.
  [[nodiscard]] std::filesystem::path swap_file(const std::string& directory) const {
    const auto folder = *std::filesystem::directory_iterator(directory_ / directory);
    return folder.path() / "tiles-0.swap";
  }
  [[nodiscard]] Answer run(std::vector<std::string> arguments) const {
    return Program(directory_, std::move(arguments)).wait();
  }
  [[nodiscard]] std::vector<std::string> train(const std::string& run, int steps,
                                               std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{
        "train", path("train.json"), "--model", path("model.json"),    "--data", path("data"),
        "--run", path(run),          "--steps", std::to_string(steps), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  /// Lines of metrics.jsonl without what may differ between runs.
  [[nodiscard]] std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::ifstream file(directory_ / run / "metrics.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) {
      nlohmann::json entry = nlohmann::json::parse(line);
      entry.erase("seconds");
      entry.erase("exposed");
      lines.push_back(entry);
    }
    return lines;
  }

  std::filesystem::path directory_;
};

}  // namespace spillway::testing
