#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cerrno>
#include <map>
#include <optional>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "tests/model/io/families.hpp"
#include "tests/model/io/scratch.hpp"
#include "tests/model/io/small_checkpoint.hpp"
#include "tests/support/failing_file_call.hpp"

namespace spillway::model::checkpoint_write_test {
namespace {

namespace fs = std::filesystem;
using testing::all_families;
using testing::append_all;
using testing::Blocks;
using ::testing::HasSubstr;
using testing::load;
using testing::random_blocks;
using testing::save;
using testing::Scratch;
using testing::slurp;
using testing::small_gpt2;
using testing::small_llama;
using testing::spit;
using ::testing::StartsWith;

TEST(Checkpoint, RoundTripsEveryFamilyInOneFileAndInShards) {
  for (const auto& [name, config] : all_families()) {
    for (const Bytes shard : {Bytes{5'000'000'000}, Bytes{9000}, Bytes{0}}) {
      // A shard for each tensor costs an fsync each; one family shows it.
      if (shard.value() == 0 && name != "gpt2_untied") continue;
      SCOPED_TRACE(name + " " + std::to_string(shard.value()));
      const Scratch scratch;
      const Blocks blocks = random_blocks(config, make_layout(config));
      save(scratch.path() / "out", config, blocks, {.max_shard = shard});
      EXPECT_EQ(load(scratch.path() / "out"), blocks);
      EXPECT_EQ(fs::exists(scratch.path() / "out/model.safetensors"), shard.value() > 1'000'000);
      EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1) << "left-overs";
    }
  }
}

TEST(Checkpoint, RoundsToTheTypeItStores) {
  const ModelConfig config = small_llama(Family::qwen2);
  const Blocks blocks = random_blocks(config, make_layout(config));
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const Scratch scratch;
    save(scratch.path() / "out", config, blocks, {.dtype = dtype});
    const Blocks loaded = load(scratch.path() / "out");
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      for (std::size_t i = 0; i < blocks[b].size(); ++i) {
        const float value = blocks[b][i];
        ASSERT_EQ(loaded[b][i], dtype == DType::bf16 ? from_bf16(parameter_to_bf16(value))
                                                     : from_fp16(to_fp16(value)));
      }
    }
  }
}

TEST(Checkpoint, TakesSixteenBitSourcesAsTheyAre) {
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  const Blocks blocks = random_blocks(config, layout);
  for (const DType stored : {DType::bf16, DType::fp32}) {
    const Scratch scratch;
    CheckpointWriter writer(scratch.path() / "out", config, layout, {.dtype = stored});
    for (std::uint32_t b = 0; b < blocks.size(); ++b) {
      std::vector<std::uint16_t> half(layout.blocks[b].parameters.value());  // without padding
      for (std::size_t i = 0; i < half.size(); ++i) half[i] = parameter_to_bf16(blocks[b][i]);
      writer.append(BlockIndex{b}, std::as_bytes(std::span(half)), DType::bf16);
    }
    writer.finish();
    const Blocks loaded = load(scratch.path() / "out");
    EXPECT_EQ(loaded[1][5], from_bf16(parameter_to_bf16(blocks[1][5])));
  }
}

TEST(Checkpoint, NamesTheWeightThatTheTypeCannotHold) {
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  Blocks blocks = random_blocks(config, layout);
  blocks[2][layout.blocks[2].tensors[3].first.value() + 1] = 70000.0F;
  const Scratch scratch;
  try {
    save(scratch.path() / "out", config, blocks, {.dtype = DType::fp16});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("transformer.h.1.mlp.c_proj.weight"));
  }
  EXPECT_TRUE(fs::is_empty(scratch.path()));
  EXPECT_NO_THROW(save(scratch.path() / "out", config, blocks, {.dtype = DType::bf16}));
}

TEST(CheckpointWriter, ShowsNothingUntilItIsFinished) {
  const Scratch scratch;
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  const Blocks blocks = random_blocks(config, layout);
  {
    CheckpointWriter writer(scratch.path() / "a/b/out/", config, layout, {});
    append_all(writer, blocks);
    EXPECT_FALSE(fs::exists(scratch.path() / "a/b/out"));
  }
  EXPECT_TRUE(fs::is_empty(scratch.path())) << "the directories above it go with it";
  {
    CheckpointWriter writer(scratch.path() / "out", config, layout, {});
    EXPECT_THROW(writer.finish(), Error) << "incomplete";
    EXPECT_THROW(writer.append(BlockIndex{1}, {}, DType::fp32), Error) << "out of order";
  }
  EXPECT_FALSE(fs::exists(scratch.path() / "out"));
}

TEST(CheckpointWriter, RefusesMoreThanABlockHolds) {
  const Scratch scratch;
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  CheckpointWriter writer(scratch.path() / "out", config, layout, {});
  const std::vector<float> much(layout.blocks[0].padded_parameters.value() + 1);
  EXPECT_THROW(writer.append(BlockIndex{0}, std::as_bytes(std::span(much)), DType::fp32), Error);
}

TEST(CheckpointWriter, ReplacesAnExportAndKeepsOtherFiles) {
  const Scratch scratch;
  const fs::path out = scratch.path() / "out";
  const ModelConfig config = small_gpt2();
  const Blocks blocks = random_blocks(config, make_layout(config));
  save(out, config, blocks, {.max_shard = Bytes{9000}});
  spit(out / "tokenizer.json", "{}");
  fs::create_directory(out / "logs");
  spit(out / "logs/a", "b");
  try {
    save(out, config, blocks);
    FAIL() << "replaced without leave";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("not empty"));
  }
  EXPECT_THAT(slurp(out / "model.safetensors.index.json"),  // indented as transformers does
              StartsWith("{\n  \"metadata\": {\n    \"total_size\": "));
  save(out, config, blocks, {.if_exists = IfExists::replace});
  EXPECT_EQ(load(out), blocks);
  EXPECT_FALSE(fs::exists(out / "model.safetensors.index.json"));
  EXPECT_EQ(slurp(out / "tokenizer.json"), "{}");
  EXPECT_EQ(slurp(out / "logs/a"), "b");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1) << "left-overs";
}

/// Returns the files of a directory by name, with their contents; nothing if it is not there.
std::optional<std::map<std::string, std::string>> contents_of(const fs::path& directory) {
  if (!fs::exists(directory)) return std::nullopt;
  std::map<std::string, std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    found[entry.path()] = slurp(entry.path());
  }
  return found;
}

TEST(CheckpointWriter, LeavesWhatItFoundWhateverCallFails) {
  const ModelConfig config = small_gpt2();
  const Blocks old_blocks =
      testing::read_all(RandomInitializer(config, make_layout(config), 1), make_layout(config));
  const Blocks blocks = random_blocks(config, make_layout(config));
  for (const std::string target : {"none", "empty", "export"}) {
    int failures = 0;
    for (bool failed = true; failed; ++failures) {
      SCOPED_TRACE(target + ", call " + std::to_string(failures));
      const Scratch scratch;
      const fs::path out = scratch.path() / "out";
      if (target != "none") fs::create_directory(out);
      if (target == "export") save(out, config, old_blocks);
      const auto before = contents_of(out);
      const SaveOptions options = {.if_exists =
                                       target == "export" ? IfExists::replace : IfExists::refuse};
      test_support::FailingFileCall fault(failures);
      fault.watch(true);
      try {
        save(out, config, blocks, options);
        fault.watch(false);
        EXPECT_TRUE(load(out) == blocks);
      } catch (const Error& error) {
        fault.watch(false);
        EXPECT_EQ(error.native(), EIO) << error.what();
        EXPECT_TRUE(contents_of(out) == before) << error.what();
        save(out, config, blocks, options);
        EXPECT_TRUE(load(out) == blocks);
      }
      failed = fault.has_failed();
    }
    EXPECT_GT(failures, 10);
  }
}

TEST(CheckpointWriter, TakesOverFromAKilledOneAndRespectsALivingOne) {
  const Scratch scratch;
  const ModelConfig config = small_gpt2();
  const Blocks blocks = random_blocks(config, make_layout(config));
  const fs::path left = scratch.path() / ".out.partial";
  fs::create_directory(left);
  spit(left / "model.safetensors", "half");
  {
    const FileDescriptor living = open_file(left, O_RDONLY | O_DIRECTORY);
    ASSERT_EQ(::flock(living.get(), LOCK_EX | LOCK_NB), 0);
    try {
      save(scratch.path() / "out", config, blocks);
      FAIL() << "wrote into another's directory";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::busy);
    }
    EXPECT_EQ(slurp(left / "model.safetensors"), "half");
  }
  save(scratch.path() / "out", config, blocks);
  EXPECT_EQ(load(scratch.path() / "out"), blocks);
}

TEST(CheckpointWriter, RefusesAFileAsTarget) {
  const Scratch scratch;
  spit(scratch.path() / "out", "precious");
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  EXPECT_THROW(
      CheckpointWriter(scratch.path() / "out", config, layout, {.if_exists = IfExists::replace}),
      Error);
  EXPECT_EQ(slurp(scratch.path() / "out"), "precious");
}

TEST(CheckpointWriter, RefusesTheRootAsTargetWhateverItHolds) {
  const ModelConfig config = small_gpt2();
  try {
    CheckpointWriter("/", config, make_layout(config), {});
    FAIL() << "took it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("/ cannot be an export; name a directory below it"));
  }
}

}  // namespace
}  // namespace spillway::model::checkpoint_write_test
