// Machines from JSON: what is refused, and the rate of FWD-BWD that a description amounts to.
#include "tools/bench/machine_description.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "tools/bench/model_shapes.hpp"
#include "tools/bench/peak_flops.hpp"

namespace spillway::bench::machine_description_test {
namespace {

nlohmann::json round_machine() {
  return {{"name", "a round machine"},
          {"basis", "assumed"},
          {"gpu", "none"},
          {"matmul_tflops", 100},
          {"attention_forward_tflops", 50},
          {"attention_backward_tflops", 25},
          {"attention_backward_deterministic_tflops", 20},
          {"device_memory_gbps", 1000},
          {"h2d_gbps", 10},
          {"d2h_gbps", 20},
          {"link_both_gbps", 25},
          {"host_memory_gbps", 200},
          {"disk_read_gbps", 4},
          {"disk_write_gbps", 2},
          {"disk_both_gbps", 3},
          {"op_overhead_us", 10},
          {"device_memory", "80GB"},
          {"host_memory", "100GB"},
          {"disk_space", "1TB"}};
}

std::string refusal(const nlohmann::json& document) {
  try {
    (void)parse_machine(document.dump(), "test");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(MachineDescription, ReadsRatesInTheirUnits) {
  const MachineDescription machine = parse_machine(round_machine().dump(), "test");
  EXPECT_EQ(machine.matmul_flops, 100e12);
  EXPECT_EQ(machine.lanes.h2d, 10e9);
  EXPECT_EQ(machine.lanes.h2d_d2h_combined, 25e9);
  EXPECT_EQ(machine.lanes.nvme_combined, 3e9);
  EXPECT_DOUBLE_EQ(machine.lanes.op_overhead_seconds, 10e-6);
  EXPECT_EQ(machine.capacity.device.value(), 80'000'000'000U);
  EXPECT_EQ(machine.generation, 0U) << "not said";
  nlohmann::json said = round_machine();
  said["generation"] = 90;
  EXPECT_EQ(parse_machine(said.dump(), "test").generation, 90U);
}

TEST(MachineDescription, RefusesWhatItDoesNotKnowOrMisses) {
  auto unknown = round_machine();
  unknown["warp_gbps"] = 1;
  EXPECT_NE(refusal(unknown).find("warp_gbps"), std::string::npos);
  auto missing = round_machine();
  missing.erase("h2d_gbps");
  EXPECT_NE(refusal(missing).find("h2d_gbps"), std::string::npos);
  missing.erase("name");
  missing.erase("disk_space");
  EXPECT_NE(refusal(missing).find(R"(no key "name", "h2d_gbps", "disk_space")"), std::string::npos)
      << refusal(missing);
  auto negative = round_machine();
  negative["d2h_gbps"] = -1;
  EXPECT_NE(refusal(negative).find("-1"), std::string::npos);
  auto vague = round_machine();
  vague["basis"] = "hoped";
  EXPECT_NE(refusal(vague).find("hoped"), std::string::npos);
  EXPECT_FALSE(refusal(nlohmann::json::array()).empty());
}

TEST(MachineDescription, NamesEveryKeyThatItNeeds) {
  const nlohmann::json whole = round_machine();
  for (const auto& [key, value] : whole.items()) {
    auto missing = round_machine();
    missing.erase(key);
    if (key == "attention_backward_deterministic_tflops" || key == "sources") continue;
    EXPECT_NE(refusal(missing).find(R"(no key ")" + key + R"(")"), std::string::npos) << key;
  }
}

TEST(MachineDescription, AnOlderOneHasAnAssumedRateOfDeterministicAttention) {
  nlohmann::json older = round_machine();
  EXPECT_FALSE(parse_machine(older.dump(), "test").assumes_slowdown);
  older.erase("attention_backward_deterministic_tflops");
  const MachineDescription machine = parse_machine(older.dump(), "test");
  EXPECT_TRUE(machine.assumes_slowdown);
  EXPECT_DOUBLE_EQ(machine.attention_backward_deterministic_flops, 25e12 / 1.36);
}

TEST(MachineDescription, RanksOfOneMachineShareItsHostAndItsDisks) {
  nlohmann::json document = round_machine();
  document["gpus"] = 4;
  document["nvlink_gbps"] = 300;
  document["net_gbps"] = 25;
  MachineDescription machine = parse_machine(document.dump(), "test");
  share_among_ranks(machine, {.ranks = 8, .nodes = 4});
  EXPECT_EQ(machine.lanes.net, 25e9);
  EXPECT_EQ(machine.lanes.h2d, 10e9);
  EXPECT_EQ(machine.lanes.update, 100e9);
  EXPECT_EQ(machine.lanes.nvme_read, 2e9);
  EXPECT_EQ(machine.capacity.device.value(), 80'000'000'000U);
  EXPECT_EQ(machine.capacity.host.value(), 50'000'000'000U);
  machine = parse_machine(document.dump(), "test");
  share_among_ranks(machine, {.ranks = 4, .nodes = 1});
  EXPECT_EQ(machine.lanes.net, 300e9);
  EXPECT_THROW(share_among_ranks(machine, {.ranks = 5, .nodes = 1}), Error);
  EXPECT_THROW(share_among_ranks(machine, {.ranks = 0, .nodes = 1}), Error);
  EXPECT_THROW(share_among_ranks(machine, {.ranks = 1, .nodes = 0}), Error);
  for (const double gpus : {0.0, 0.5, -1.0, 1e300}) {
    nlohmann::json wrong = document;
    wrong["gpus"] = gpus;
    EXPECT_NE(refusal(wrong).find("\"gpus\""), std::string::npos) << gpus;
  }
  document.erase("net_gbps");
  machine = parse_machine(document.dump(), "test");
  EXPECT_THROW(share_among_ranks(machine, {.ranks = 2, .nodes = 2}), Error);
}

nlohmann::json varied_machine() {
  nlohmann::json document = round_machine();
  document["memory"] = {{"256gb", {{"host_memory", "240GB"}, {"host_memory_gbps", 150}}},
                        {"64gb", {{"host_memory", "60GB"}, {"host_memory_gbps", 100}}}};
  document["drives"] = {{"2ssd",
                         {{"disk_read_gbps", 8},
                          {"disk_write_gbps", 4},
                          {"disk_both_gbps", 6},
                          {"disk_space", "2TB"}}}};
  return document;
}

TEST(MachineDescription, AVariantTakesThePlaceOfWhatIsDescribed) {
  const std::string text = varied_machine().dump();
  const MachineDescription plain = parse_machine(text, "test");
  EXPECT_EQ(plain.capacity.host.value(), 100'000'000'000U);
  EXPECT_EQ(plain.memory, (std::vector<std::string>{"64gb", "256gb"}));
  EXPECT_EQ(plain.drives, (std::vector<std::string>{"2ssd"}));
  const MachineDescription large =
      parse_machine(text, "test", {.memory = "256gb", .drives = "2ssd"});
  EXPECT_EQ(large.capacity.host.value(), 240'000'000'000U);
  EXPECT_EQ(large.lanes.update, 150e9);
  EXPECT_EQ(large.capacity.nvme.value(), 2'000'000'000'000U);
  EXPECT_EQ(large.lanes.nvme_read, 8e9);
  EXPECT_EQ(large.lanes.nvme_write, 4e9);
  EXPECT_EQ(large.lanes.nvme_combined, 6e9);
  EXPECT_EQ(large.lanes.h2d, plain.lanes.h2d);
  EXPECT_THROW((void)parse_machine(text, "test", {.memory = "1tb", .drives = ""}), Error);
}

TEST(MachineDescription, RefusesAVariantThatLacksAKeyOrHasAnotherOrAWrongValue) {
  auto missing = varied_machine();
  missing["memory"]["64gb"].erase("host_memory_gbps");
  EXPECT_NE(refusal(missing).find("host_memory_gbps"), std::string::npos);
  auto other = varied_machine();
  other["drives"]["2ssd"]["h2d_gbps"] = 1;
  EXPECT_NE(refusal(other).find("\"2ssd\""), std::string::npos);
  auto wrong = varied_machine();
  wrong["memory"]["64gb"]["host_memory_gbps"] = -3;
  EXPECT_NE(refusal(wrong).find("-3"), std::string::npos);
  auto list = varied_machine();
  list["drives"] = nlohmann::json::array();
  EXPECT_NE(refusal(list).find("\"drives\""), std::string::npos);
}

TEST(MachineDescription, TheRateIsThatOfItsPartsOneAfterTheOther) {
  const MachineDescription machine = parse_machine(round_machine().dump(), "test");
  model::ModelConfig config = model_named("llama-3-8b");
  config.layers = 1;
  config.vocab_size = 1024;
  constexpr std::uint32_t kContext = 1024;
  // One layer of `products` FLOPs beside attention, which a window of n tokens has 4 * n(n+1)/2 * d
  // of in forward and 2.5 times that in backward.
  const double attention = 4.0 * kContext * (kContext + 1) / 2 * 4096;
  const double products = 1e12;
  plan::Workload workload;
  workload.blocks.push_back({.name = "layer",
                             .parameters = ElementCount{1'000'000},
                             .padded_parameters = ElementCount{1'003'520},
                             .forward_flops = products + attention,
                             .backward_flops = 2 * products + 2.5 * attention,
                             .saved_bytes = Bytes{}});
  workload.compute = DType::bf16;
  workload.tokens = kContext;
  // Forward 6 widths, 2 of q and k, 3 of the MLP; backward 12, 2 and 6; logits 3 fp32 and 3 bf16.
  const double elements = 18.0 * 4096 + 4.0 * (4096 + 1024) + 9.0 * 14336;
  const double passing = kContext * (2 * elements + 1024 * 18.0) + 8e6;
  EXPECT_DOUBLE_EQ(passing_bytes(config, workload), passing);
  config::TrainOptions options;
  options.context = kContext;
  for (const auto& [deterministic, backward] : {std::pair(true, 20e12), {false, 25e12}}) {
    options.deterministic = deterministic;
    const double seconds =
        3 * products / 100e12 + attention / 50e12 + 2.5 * attention / backward + passing / 1000e9;
    const plan::MachineProfile profile = profile_for(machine, config, workload, options);
    EXPECT_NEAR(profile.gpu_flops * seconds / (3 * products + 3.5 * attention), 1, 1e-12);
    EXPECT_EQ(profile.update, 200e9);
  }
}

TEST(PeakFlops, KnowsBoardsOfOneChipApart) {
  EXPECT_EQ(peak_flops("NVIDIA H100 PCIe", DType::bf16), 756e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3", DType::bf16), 989.4e12);
  EXPECT_EQ(peak_flops("NVIDIA H200", DType::fp32), 494.7e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB", DType::fp16), 312e12);
  EXPECT_EQ(peak_flops("NVIDIA L4", DType::bf16), 121e12);
  EXPECT_EQ(peak_flops("NVIDIA L40S", DType::bf16), 362e12);
  EXPECT_EQ(peak_flops("host", DType::bf16), std::nullopt);
  // Other boards, whose names begin like theirs.
  for (const char* const name :
       {"NVIDIA RTX A1000", "NVIDIA RTX A4000", "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3090 Ti"}) {
    EXPECT_EQ(peak_flops(name, DType::bf16), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace spillway::bench::machine_description_test
