// A model whose layers are larger than the device, from the advice to the exported checkpoint.
#include <cmath>
#include <regex>

#include "tests/tools/cli_fixture.hpp"

namespace spillway::testing::operator_tile_test {
namespace {

constexpr const char* kLlama = R"({
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256,
  "max_position_embeddings": 16, "hidden_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 2048,
  "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": false})";

std::string config_with(const std::string& operator_tile) {
  return R"({
  "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.99]}},
  "spillway": {"context": 16, "seed": 3, "operator_tile": )" +
         operator_tile + "}}";
}

class CliTiles : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    write_all(path("model.json"), kLlama);
  }
  /// One layer and its gradients take 3.4 MB.
  [[nodiscard]] Answer train_small(const std::string& operator_tile) const {
    write_all(path("train.json"), config_with(operator_tile));
    return run(train("run", 20, {"--device-memory", "2MiB"}));
  }
};

TEST_F(CliTiles, AdviceForATooSmallDeviceTrainsAndExportsWholeMatrices) {
  const Answer whole = train_small("0");
  ASSERT_EQ(whole.exit_code, 3) << whole.err;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(whole.err, found, std::regex("spillway.operator_tile ([0-9]+)")))
      << whole.err;

  const Answer trained = train_small(found[1]);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const double loss = trained.json()["val_loss"];
  EXPECT_LT(loss, 5.0) << "5.5 before the first step";

  const Answer of_run =
      run({"eval", "--run", path("run"), "--data", path("data"), "--batch", "4", "--json"});
  ASSERT_EQ(of_run.exit_code, 0) << of_run.err;
  // Layers run whole there: sums in other orders.
  EXPECT_NEAR(of_run.json()["loss"].get<double>(), loss, 1e-5 * loss);
  ASSERT_EQ(run({"export", path("run"), path("hf")}).exit_code, 0);
  const Answer of_checkpoint =
      run({"eval", "--model", path("hf"), "--data", path("data"), "--batch", "4", "--json"});
  ASSERT_EQ(of_checkpoint.exit_code, 0) << of_checkpoint.err;
  EXPECT_EQ(of_checkpoint.json()["loss"], of_run.json()["loss"]);
}

TEST_F(CliTiles, OtherTilesAreAnotherMathematics) {
  ASSERT_EQ(train_small("65536").exit_code, 0);
  write_all(path("train.json"), config_with("32768"));
  const Answer resumed = run(train("run", 22, {"--resume"}));
  EXPECT_EQ(resumed.exit_code, 2);
  EXPECT_NE(resumed.err.find("operator_tile"), std::string::npos) << resumed.err;
}

TEST_F(CliTiles, TilesBelowARowAreRefusedByName) {
  const Answer answer = train_small("2047");
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_NE(answer.err.find("2048"), std::string::npos) << answer.err;
}

}  // namespace
}  // namespace spillway::testing::operator_tile_test
