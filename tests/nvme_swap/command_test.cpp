// `spillway fsck` and `spillway bench nvme|swap` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/nvme_swap/test_support.hpp"
#include "tests/tools/program.hpp"

namespace spillway::nvme_swap::command_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kModel = R"({
  "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256,
  "n_positions": 16, "n_embd": 48, "n_layer": 2, "n_head": 2, "activation_function": "gelu_new",
  "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
  "tie_word_embeddings": true})";

constexpr const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
  "spillway": {"context": 16, "seed": 3, "tile_parameters": 8192}})";

class DiskCommands : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return scratch_.path() / name; }
  [[nodiscard]] spillway::testing::Answer run(std::vector<std::string> arguments) const {
    return spillway::testing::Program(scratch_.path(), std::move(arguments)).wait();
  }
  ScratchDirectory scratch_;
};

TEST_F(DiskCommands, FsckFindsDamageInARunAndNamesIt) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i * i % 97) + " of the text.\n";
  spillway::testing::write_all(path("text.txt"), text);
  spillway::testing::write_all(path("model.json"), kModel);
  spillway::testing::write_all(path("train.json"), kConfig);
  ASSERT_EQ(
      run({"data", path("text.txt"), "--out", path("data"), "--tokenizer", "bytes"}).exit_code, 0);
  EXPECT_EQ(run({"fsck", path("data")}).exit_code, 2) << "not a run";
  fs::create_directory(path("disk"));
  const auto trained =
      run({"train", path("train.json"), "--model", path("model.json"), "--data", path("data"),
           "--run", path("run"), "--nvme", path("disk"), "--steps", "3", "--json"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;

  const auto sound = run({"fsck", path("run"), "--json"});
  ASSERT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_EQ(sound.json()["sound"], true);
  EXPECT_EQ(sound.json()["stores"][0]["committed_step"], 3);
  EXPECT_GT(sound.json()["stores"][0]["bytes_checked"], 100'000);
  EXPECT_THAT(run({"fsck", path("run")}).out, HasSubstr("sound: committed step 3"));

  const fs::path swap = fs::directory_iterator(path("disk"))->path() / "tiles-0.swap";
  std::string bytes = spillway::testing::read_all(swap);
  // Pages of both slots of the last tile.
  for (std::size_t i = 1; i < 200'000; i += 4096) bytes[bytes.size() - i] ^= 1;
  spillway::testing::write_all(swap, bytes);
  const auto damaged = run({"fsck", path("run"), "--json"});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_EQ(damaged.json()["sound"], false);
  EXPECT_EQ(damaged.json()["stores"][0]["resumable"], false);
  EXPECT_FALSE(damaged.json()["stores"][0]["damage"].empty());
  const auto told = run({"fsck", path("run")});
  EXPECT_EQ(told.exit_code, 1);
  EXPECT_THAT(told.out, HasSubstr("DAMAGED tiles-0.swap: tile "));
}

TEST_F(DiskCommands, BenchNvmeMeasuresEveryEngineAndVerifies) {
  const auto answer = run({"bench", "nvme", "--dir", scratch_.path(), "--size", "16MiB", "--depths",
                           "2,4", "--blocks", "256KiB", "--point-ms", "10", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json document = answer.json();
  EXPECT_EQ(document["sequential"].size(), 3U * 3 * 2);
  EXPECT_EQ(document["tiles"].size(), 3U * 3);
  for (const auto& row : document["sequential"]) EXPECT_GT(row["gigabytes_per_second"], 0);
  EXPECT_EQ(document["verified"], true);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 2)
      << "more than the program's two outputs is left";
}

TEST_F(DiskCommands, BenchSwapComparesThePipelineWithItsParts) {
  // int8 has a page of scales for each tile beside 6 bytes a parameter.
  for (const auto& [format, bytes] :
       {std::pair{"fp32", 12 * 8192}, {"split", 12 * 8192}, {"int8", 6 * 8192 + 4096}}) {
    const auto answer =
        run({"bench", "swap", "--dir", scratch_.path(), "--size", "100000", "--tile", "8192",
             "--buffers", "4", "--rounds", "2", "--format", format, "--json"});
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    const json document = answer.json();
    EXPECT_EQ(document["state_format"], format);
    EXPECT_EQ(document["parameters"], 13 * 8192);
    EXPECT_EQ(document["verified"], true);
    EXPECT_EQ(document["wear"]["bytes_written_a_step"], 13 * bytes);
    EXPECT_GT(document["ratio_to_limit"], 0);
  }
  EXPECT_EQ(run({"bench", "swap", "--size", "0"}).exit_code, 2);
  EXPECT_EQ(run({"bench", "swap", "--format", "fp8"}).exit_code, 2);
}

}  // namespace
}  // namespace spillway::nvme_swap::command_test
