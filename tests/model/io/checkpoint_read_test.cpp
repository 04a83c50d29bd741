#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/error.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/hf/tokenizer_files.hpp"
#include "tests/model/io/families.hpp"
#include "tests/model/io/scratch.hpp"
#include "tests/model/io/small_checkpoint.hpp"

namespace spillway::model::checkpoint_read_test {
namespace {

namespace fs = std::filesystem;
using testing::Blocks;
using ::testing::HasSubstr;
using testing::random_blocks;
using testing::read_all;
using testing::save;
using testing::Scratch;
using testing::slurp;
using testing::small_gpt2;
using testing::small_llama;
using testing::spit;

/// A file of fp32 tensors, each filled with its place in the list.
void write_tensors(const fs::path& path, const std::vector<TensorToStore>& tensors,
                   DType dtype = DType::fp32) {
  SafetensorsWriter writer(path, tensors, dtype);
  float value = 0;
  for (const TensorToStore& tensor : tensors) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : tensor.shape) count *= extent;
    const std::vector<float> values(count, ++value);
    if (dtype == DType::fp32) writer.append(std::as_bytes(std::span(values)));
    if (dtype != DType::fp32) writer.append(std::vector<std::byte>(2 * count));
  }
  writer.finish();
}

std::vector<TensorToStore> tensors_of(const ModelConfig& config) {
  std::vector<TensorToStore> tensors;
  for (const BlockLayout& block : make_layout(config).blocks) {
    for (const ParameterTensor& tensor : block.tensors) {
      tensors.push_back({tensor.name, tensor.shape});
    }
  }
  return tensors;
}

std::string refusal(const fs::path& directory, const ModelConfig& config) {
  const ModelLayout layout = make_layout(config);
  try {
    const CheckpointReader reader(directory, config, layout);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Checkpoint, ReadsAnyPartOfABlock) {
  const Scratch scratch;
  const ModelConfig config = small_llama(Family::qwen3);
  const ModelLayout layout = make_layout(config);
  const Blocks blocks = random_blocks(config, layout);
  save(scratch.path() / "out", config, blocks, {.max_shard = Bytes{5000}});
  const CheckpointReader reader(scratch.path() / "out", config, layout);
  for (std::uint32_t b = 0; b < blocks.size(); ++b) {
    for (std::size_t first = 0; first < blocks[b].size(); first += 777) {
      std::vector<float> part(std::min<std::size_t>(1500, blocks[b].size() - first), -1.0F);
      reader.read(BlockIndex{b}, ElementCount{first}, part);
      ASSERT_TRUE(std::ranges::equal(part, std::span(blocks[b]).subspan(first, part.size())));
    }
  }
}

TEST(Checkpoint, GivesTheSameToManyThreadsAtOnce) {
  const Scratch scratch;
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  const Blocks blocks = random_blocks(config, layout);
  save(scratch.path() / "out", config, blocks, {.max_shard = Bytes{20000}});
  const CheckpointReader reader(scratch.path() / "out", config, layout);
  std::array<Blocks, 4> read;
  std::vector<std::thread> threads;
  threads.reserve(read.size());
  for (Blocks& mine : read) {
    threads.emplace_back([&] { mine = read_all(reader, layout); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Blocks& mine : read) EXPECT_EQ(mine, blocks);
}

TEST(Checkpoint, AcceptsNamesWithoutThePrefixAndKnownBuffers) {
  for (const ModelConfig& config : {small_gpt2(), small_llama(Family::qwen3)}) {
    const Scratch scratch;
    std::vector<TensorToStore> tensors = tensors_of(config);
    for (TensorToStore& tensor : tensors) {
      tensor.name = tensor.name.substr(tensor.name.find('.') + 1);
    }
    if (config.is_gpt2()) {
      tensors.push_back({"h.0.attn.bias", {1, 1, 24, 24}});
      tensors.push_back({"h.1.attn.masked_bias", {}});
    } else {
      tensors.push_back({"layers.1.self_attn.rotary_emb.inv_freq", {8}});
    }
    write_tensors(scratch.path() / "model.safetensors", tensors);
    const ModelLayout layout = make_layout(config);
    const Blocks blocks = read_all(CheckpointReader(scratch.path(), config, layout), layout);
    EXPECT_EQ(blocks[0][0], 1.0F);
  }
}

TEST(Checkpoint, RefusesAWeightThatIsNotFiniteByName) {
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -HUGE_VALF}) {
    const Scratch scratch;
    Blocks blocks = random_blocks(config, layout);
    const ParameterTensor& last = layout.blocks[1].tensors.back();
    blocks[1][last.first.value() + 2] = bad;
    save(scratch.path() / "out", config, blocks, {});
    const CheckpointReader reader(scratch.path() / "out", config, layout);
    EXPECT_NO_THROW([&] {
      std::vector<float> before(last.first.value());
      reader.read(BlockIndex{1}, ElementCount{0}, before);
    }());
    try {
      static_cast<void>(read_all(reader, layout));
      ADD_FAILURE() << "accepted " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      EXPECT_THAT(error.what(), HasSubstr(last.name));
      EXPECT_THAT(error.what(), HasSubstr("at element 2;"));
    }
  }
}

TEST(Checkpoint, AcceptsATiedHeadOnlyIfItIsTheEmbedding) {
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  const Scratch scratch;
  const fs::path path = scratch.path() / "model.safetensors";
  std::vector<TensorToStore> tensors = tensors_of(config);
  tensors.push_back({"lm_head.weight", tensors[0].shape});
  write_tensors(path, tensors);
  EXPECT_THAT(refusal(scratch.path(), config), HasSubstr("tie_word_embeddings"));
  fs::remove(path);
  write_tensors(path, tensors, DType::fp16);  // all zero
  EXPECT_EQ(refusal(scratch.path(), config), "accepted");
  tensors.back().shape.back() += 1;
  fs::remove(path);
  write_tensors(path, tensors, DType::fp16);
  EXPECT_THAT(refusal(scratch.path(), config), HasSubstr("lm_head.weight"));
}

TEST(Checkpoint, ComparesATiedHeadWithAnEmbeddingInTiles) {
  const ModelConfig config = small_llama(Family::qwen3);
  const ModelLayout layout = make_layout(config, 500);
  const Scratch scratch;
  const fs::path path = scratch.path() / "model.safetensors";
  std::vector<TensorToStore> tensors = tensors_of(config);
  tensors.push_back({"lm_head.weight", tensors[0].shape});
  write_tensors(path, tensors);
  EXPECT_THROW(CheckpointReader(scratch.path(), config, layout), Error);
  fs::remove(path);
  write_tensors(path, tensors, DType::fp16);  // all zero
  EXPECT_NO_THROW(CheckpointReader(scratch.path(), config, layout));
}

TEST(Checkpoint, NamesTheTensorThatIsMissingExtraMisshapenOrOfAnotherType) {
  const ModelConfig config = small_llama(Family::llama);
  const Scratch scratch;
  const fs::path path = scratch.path() / "model.safetensors";
  const std::vector<TensorToStore> tensors = tensors_of(config);
  const auto refuse = [&](const std::vector<TensorToStore>& changed) {
    fs::remove(path);
    write_tensors(path, changed);
    return refusal(scratch.path(), config);
  };
  EXPECT_EQ(refuse(tensors), "accepted");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto changed = tensors;
    changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(refuse(changed), HasSubstr(tensors[i].name)) << "missing";
    changed = tensors;
    changed[i].shape.push_back(1);
    EXPECT_THAT(refuse(changed), HasSubstr(tensors[i].name)) << "misshapen";
    changed = tensors;
    changed.push_back({tensors[i].name + "x", {1}});
    EXPECT_THAT(refuse(changed), HasSubstr(tensors[i].name + "x")) << "extra";
  }
  EXPECT_THAT(refuse([&] {
                auto changed = tensors;
                changed.push_back({"model.layers.2.mlp.up_proj.weight", {48, 32}});
                return changed;
              }()),
              HasSubstr("model.layers.2.mlp.up_proj.weight"));
  EXPECT_THAT(refuse([&] {
                auto changed = tensors;
                changed.push_back({"norm.weight", {32}});
                return changed;
              }()),
              HasSubstr("twice"));

  std::string content = slurp(path);
  fs::remove(path);
  write_tensors(path, tensors);
  content = slurp(path);
  content.replace(content.find("\"F32\""), 5, "\"I32\"");
  spit(path, content);
  EXPECT_THAT(refusal(scratch.path(), config), HasSubstr("model.embed_tokens.weight"));
  EXPECT_THAT(refusal(scratch.path(), config), HasSubstr("I32"));
}

class ShardedCheckpoint : public ::testing::Test {
 protected:
  ShardedCheckpoint() {
    save(directory_, config_, random_blocks(config_, make_layout(config_)),
         {.max_shard = Bytes{9000}});
    index_ = nlohmann::ordered_json::parse(slurp(directory_ / "model.safetensors.index.json"));
  }
  std::string refuse(const nlohmann::ordered_json& index) {
    spit(directory_ / "model.safetensors.index.json", index.dump());
    return refusal(directory_, config_);
  }

  Scratch scratch_;
  fs::path directory_ = scratch_.path() / "out";
  ModelConfig config_ = small_llama(Family::mistral);
  nlohmann::ordered_json index_;
};

TEST_F(ShardedCheckpoint, RefusesAnIndexThatLeavesTheDirectory) {
  const std::string tensor = index_["weight_map"].begin().key();
  fs::copy(directory_ / index_["weight_map"][tensor], scratch_.path() / "outside.safetensors");
  for (const char* name : {"../outside.safetensors", "/etc/passwd", "..", "", "x/y.safetensors",
                           ".hidden.safetensors", "config.json"}) {
    auto changed = index_;
    changed["weight_map"][tensor] = name;
    EXPECT_THAT(refuse(changed), HasSubstr("is not the name of a .safetensors file")) << name;
  }
  auto changed = index_;
  changed["weight_map"][tensor] = 5;
  EXPECT_THAT(refuse(changed), HasSubstr("must be a name"));
  EXPECT_THAT(refuse({{"weight_map", nlohmann::ordered_json::object()}}), HasSubstr("weight_map"));
  EXPECT_THAT(refuse(nlohmann::ordered_json::array()), HasSubstr("weight_map"));
}

TEST_F(ShardedCheckpoint, RefusesAnIndexThatDisagreesWithTheShards) {
  const std::string tensor = index_["weight_map"].begin().key();
  auto changed = index_;
  changed["weight_map"].erase(tensor);
  EXPECT_THAT(refuse(changed), HasSubstr(tensor));
  changed = index_;
  changed["weight_map"]["model.surprise"] = index_["weight_map"][tensor];
  EXPECT_THAT(refuse(changed), HasSubstr("model.surprise"));
  changed = index_;
  for (auto& [name, file] : changed["weight_map"].items()) {
    if (file != index_["weight_map"][tensor]) {
      changed["weight_map"][tensor] = file;  // the other shard does not hold it
      break;
    }
  }
  EXPECT_THAT(refuse(changed), HasSubstr(tensor));
  changed = index_;
  changed["weight_map"][tensor] = "model-99999-of-99999.safetensors";
  EXPECT_THAT(refuse(changed), HasSubstr("model-99999-of-99999.safetensors"));
}

TEST_F(ShardedCheckpoint, RefusesATensorInTwoShards) {
  write_tensors(directory_ / "twice.safetensors", {{"norm.weight", {32}}});
  auto changed = index_;
  changed["weight_map"]["norm.weight"] = "twice.safetensors";
  EXPECT_THAT(refuse(changed), HasSubstr("twice"));
}

TEST_F(ShardedCheckpoint, RefusesTwoCheckpointsInOneDirectory) {
  write_tensors(directory_ / "model.safetensors", tensors_of(config_));
  EXPECT_THAT(refusal(directory_, config_), HasSubstr("has both"));
}

TEST(Checkpoint, DoesNotTakeAFileThatCannotBeLookedAtForMissing) {
  const Scratch scratch;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    const auto path = scratch.path() / name;
    std::filesystem::create_symlink(path, path);
    EXPECT_THAT(refusal(scratch.path(), small_gpt2()), HasSubstr(path.string() + ": Too many"));
    std::filesystem::remove(path);
  }
}

TEST(TokenizerFiles, OfMoreThan256MiBAreRefused) {
  const Scratch scratch;
  const std::filesystem::path path = scratch.path() / "tokenizer.json";
  spit(path, "{}");
  EXPECT_EQ(read_tokenizer_file(path), "{}");
  std::filesystem::resize_file(path, (256U << 20) + 1);  // a hole
  EXPECT_THROW(static_cast<void>(read_tokenizer_file(path)), Error);
}

TEST(Checkpoint, SaysWhatToDoWithoutSafetensors) {
  const Scratch scratch;
  EXPECT_THAT(refusal(scratch.path(), small_gpt2()), HasSubstr("save_pretrained"));
}

}  // namespace
}  // namespace spillway::model::checkpoint_read_test
