// What the ranks of a job compare before they train: each option, the training tokens and the
// model.
#include "runtime/engine/run/job_start.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "comm/threads/thread_group.hpp"
#include "runtime/base/error.hpp"
#include "runtime/config/options_table.hpp"
#include "tests/config/config_test_support.hpp"

namespace spillway::engine::job_start_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const RunSources kSources{.run = "run", .weights = "run 1", .validation_fingerprint = 5};

/// Returns what ranks 0 and 1 are told; empty: they run the same thing.
std::string told(const RunConfig& first, const RunConfig& second,
                 const RunSources& sources = kSources) {
  try {
    comm::ThreadGroup(2).run([&](comm::Communicator& self) {
      RankGroups ranks(&self, {.replicas = 2});
      const bool leader = ranks.leads();
      check_same_run(ranks, leader ? first : second, leader ? kSources : sources);
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

RunConfig run_of(const config::TrainOptions& options) {
  return {.model = {.vocab_size = 67,
                    .max_context = 16,
                    .layers = 2,
                    .width = 8,
                    .heads = 2,
                    .kv_heads = 2,
                    .head_dim = 4,
                    .ffn_width = 32},
          .options = options,
          .data = "data",
          .identity = {.fingerprint = 0xabc}};
}

/// Returns another value of an option that has `value`.
json other_than(const json& value, const config::Option& option) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_float()) return value.get<double>() / 2 + 0.125;
  if (value.is_number()) return value.get<std::int64_t>() + 1;
  if (option.domain.kind == config::Kind::pair) return json{0.5, 0.5};
  if (option.domain.kind == config::Kind::wholes) return json{2, 3};
  if (option.domain.kind == config::Kind::paths) return json{"/other"};
  if (option.domain.kind == config::Kind::size) return "3MiB";
  const auto& names = option.domain.names;
  if (names.empty()) return "other";
  return value == names.back() ? names.front() : names.back();
}

// All that these say, and their defaults: together, every option.
constexpr const char* kConfigurations[] = {
    R"({})",
    R"({"pipeline": {"stages": 2}, "gradient_accumulation_steps": 2,
        "spillway": {"pipeline_parts": [1, 1]}})",
    R"({"fp16": {"enabled": true}, "optimizer": {"type": "SGD", "params": {"momentum": 0.5}}})",
    R"({"scheduler": {"type": "WSD", "params": {"total_num_steps": 90, "decay_num_steps": 9}}})",
    R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9000}}})",
    R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9000}}})",
    R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}}})",
    R"({"scheduler": {"type": "LRRangeTest"}})",
    R"({"tensorboard": {"enabled": true, "output_path": "/t"},
        "csv_monitor": {"enabled": true, "output_path": "/c"},
        "spillway": {"device": "host", "prefetch": 2, "device_memory": "1GiB",
                     "host_memory": "1GiB", "nvme": ["/n"], "isa": "portable",
                     "host_link_gbps": 1, "disk_gbps": 1, "timeout": 60}})"};
// They say how a rank does its part.
const std::set<std::string> kOwn{"spillway.nvme",
                                 "spillway.io_engine",
                                 "spillway.threads",
                                 "spillway.compute_threads",
                                 "spillway.isa",
                                 "spillway.host_memory",
                                 "spillway.device_memory",
                                 "spillway.host_link_gbps",
                                 "spillway.disk_gbps",
                                 "spillway.timeout",
                                 "tensorboard.output_path",
                                 "csv_monitor.output_path"};

// Ranks that do not do the same wait for each other without end, or train something else.
TEST(RanksThatStart, MayDifferInWhatEachWorksWithAndInNoOtherOption) {
  std::set<std::string> left;
  for (const config::Option& option : config::options_table()) {
    if (option.value != nullptr) left.insert(option.path());  // others are old names
  }
  // These say again what spillway.compute and optimizer.type say.
  for (const char* const again : {"fp16.enabled", "bf16.enabled", "optimizer.params.adam_w_mode"}) {
    left.erase(again);
  }
  for (const char* const text : kConfigurations) {
    const config::TrainOptions options = config::test::options_of(text);
    json file = json::parse(to_config_json(options));
    file["fp16"].erase("enabled");
    file["bf16"].erase("enabled");
    for (const config::Option& option : config::options_table()) {
      std::string path = option.path();
      std::ranges::replace(path, '.', '/');
      const json::json_pointer place("/" + path);
      if (!file.contains(place)) continue;
      json changed = file;
      changed[place] = other_than(file[place], option);
      SCOPED_TRACE(option.path() + " " + changed[place].dump());
      config::TrainOptions other;
      try {
        other = config::test::options_of(changed.dump());
      } catch (const Error&) {
        continue;  // no configuration says this and the rest
      }
      left.erase(option.path());
      const bool type = option.path() == "spillway.compute";
      const std::string answer = told(run_of(options), run_of(other));
      if (kOwn.contains(option.path())) {
        EXPECT_EQ(answer, "");
      } else {
        EXPECT_THAT(answer,
                    HasSubstr("rank 1 has " + (type ? "fp16.enabled" : option.path()) + ": "));
      }
    }
  }
  EXPECT_THAT(left, testing::ElementsAre()) << "no configuration has these";
}

TEST(RanksThatStart, AreRefusedWithOtherTokens) {
  const RunConfig run = run_of({});
  RunConfig other = run;
  EXPECT_EQ(told(run, other), "");
  other.identity.fingerprint = 0xdef;
  EXPECT_THAT(told(run, other),
              HasSubstr("rank 1 has fingerprint of the training tokens: 0000000000000def, rank 0 "
                        "has fingerprint of the training tokens: 0000000000000abc"));
}

TEST(RanksThatStart, AreRefusedWithOtherSources) {
  const RunConfig run = run_of({});
  const auto with = [&](auto change) {
    RunSources other = kSources;
    change(other);
    return told(run, run, other);
  };
  EXPECT_THAT(with([](RunSources& other) { other.run = "else"; }),
              HasSubstr("rank 1 has run directory: else, rank 0 has run directory: run"));
  EXPECT_THAT(with([](RunSources& other) { other.weights = "run 2"; }),
              HasSubstr("rank 1 has start weights: run 2, rank 0 has start weights: run 1"));
  EXPECT_THAT(with([](RunSources& other) { other.validation_fingerprint = 6; }),
              HasSubstr("rank 1 has fingerprint of the validation tokens: 0000000000000006"));
}

// Of a job on several machines each may have its own copy of the data, and has its own run.
TEST(RanksThatStart, MayHaveTheirDataInOtherPlaces) {
  const RunConfig run = run_of({});
  RunConfig other = run;
  other.id = RunId{{7, 8}};
  other.data = "elsewhere";
  other.identity.stamp = data::FileStamp{};
  EXPECT_EQ(told(run, other), "");
}

TEST(RanksThatStart, AreRefusedWithAnotherModel) {
  const RunConfig run = run_of({});
  const auto with = [&](auto change) {
    RunConfig other = run;
    change(other.model);
    return told(run, other);
  };
  EXPECT_THAT(with([](auto& model) { model.layers = 3; }),
              HasSubstr("rank 1 has n_layer of the model: 3, rank 0 has n_layer of the model: 2"));
  EXPECT_THAT(with([](auto& model) { model.vocab_size = 68; }), HasSubstr("vocab_size"));
  EXPECT_THAT(with([](auto& model) { model.max_context = 17; }), HasSubstr("n_positions"));
  EXPECT_THAT(with([](auto& model) { model.ffn_width = 33; }), HasSubstr("n_inner"));
  EXPECT_THAT(with([](auto& model) { model.norm_eps = 1e-6; }), HasSubstr("layer_norm_epsilon"));
  EXPECT_THAT(with([](auto& model) { model.init_std = 0.5; }), HasSubstr("initializer_range"));
  EXPECT_THAT(with([](auto& model) { model.tied_head = false; }), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(with([](auto& model) { model.activation = model::Activation::gelu_erf; }),
              HasSubstr("activation_function"));
}

}  // namespace
}  // namespace spillway::engine::job_start_test
