// The machines of docs/machines by name, against what vendors' data sheets print, and what their
// names stand for.
#include "tools/bench/named_machines.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/error.hpp"
#include "tests/support/source_dir.hpp"
#include "tools/bench/peak_flops.hpp"

namespace spillway::bench::named_machines_test {
namespace {

std::filesystem::path folder() { return test_support::source_dir() / "docs/machines"; }

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string refusal(const std::string& name) {
  try {
    (void)machine_from(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

/// What data sheets print of a machine, typed from them and from nothing of docs/machines: bf16
/// without sparsity and with sums in fp32, TFLOP/s; GB and GB/s of its memory; GB/s of the link in
/// one direction; GB/s of the host's memory as the description itself has it.
struct Sheet {
  std::string_view name;
  double tflops;
  double memory;
  double memory_gbps;
  double link_gbps;
  double host_gbps;
};

constexpr std::array kSheets = {
    Sheet{"rtx-3090", 71, 24, 936, 31.5, 89.6},
    Sheet{"rtx-4060-ti-16gb", 44.1, 16, 288, 15.75, 89.6},
    Sheet{"rtx-4090", 165.2, 24, 1008, 31.5, 89.6},
    Sheet{"rtx-5090", 209.5, 32, 1792, 63, 89.6},
    Sheet{"l40s", 362, 48, 864, 31.5, 307.2},
    Sheet{"a100-40gb", 312, 40, 1555, 31.5, 204.8},
    Sheet{"a100-80gb", 312, 80, 2039, 31.5, 204.8},
    Sheet{"h100", 989.4, 80, 3350, 63, 307.2},
    Sheet{"h200", 989.4, 141, 4800, 63, 307.2},
    Sheet{"b200", 2250, 180, 8000, 63, 358.4},
    Sheet{"gh200", 989.4, 96, 4000, 450, 384},
};

TEST(NamedMachines, KeepThePartsOfTheirDataSheetsThatDocsMachinesSays) {
  for (const Sheet& sheet : kSheets) {
    const MachineDescription machine = machine_from(sheet.name);
    EXPECT_EQ(peak_flops(machine.gpu, DType::bf16), sheet.tflops * 1e12) << sheet.name;
    // 0.85 of GeForce, 0.75 or 0.88 of the best measured shape of others.
    const bool geforce = machine.gpu.find("GeForce") != std::string::npos;
    const double of_peak = machine.matmul_flops / 1e12 / sheet.tflops;
    EXPECT_NEAR(of_peak, geforce ? 0.85 : 0.73, geforce ? 0.012 : 0.05) << sheet.name;
    EXPECT_NEAR(machine.lanes.gpu_update / 1e9 / sheet.memory_gbps, 0.84, 0.01) << sheet.name;
    EXPECT_EQ(machine.capacity.device.value() / 1'000'000'000, sheet.memory - 1) << sheet.name;
    const double of_link = machine.lanes.h2d / 1e9 / sheet.link_gbps;
    EXPECT_NEAR(of_link, 0.83, 0.05) << sheet.name;
    EXPECT_LE(machine.lanes.h2d_d2h_combined, machine.lanes.h2d + machine.lanes.d2h) << sheet.name;
    EXPECT_NEAR(machine.lanes.update / 1e9 / sheet.host_gbps, 0.75, 0.005) << sheet.name;
    EXPECT_FALSE(machine.assumes_slowdown) << sheet.name;
  }
}

TEST(NamedMachines, HaveTheMemoryAndTheDrivesOfTheirNames) {
  // Two channels of DDR5-5600, or of DDR5-3600 with two modules each, keep three quarters.
  const std::map<std::string, int> sizes = {{"64gb", 67}, {"128gb", 67}, {"256gb", 43}};
  for (const auto& [size, rate] : sizes) {
    for (const unsigned drives : {1U, 2U}) {
      const std::string name = "rtx-4090-" + size + "-" + std::to_string(drives) + "ssd";
      const MachineDescription machine = machine_from(name);
      EXPECT_EQ(machine.name.find(name + ": "), 0U);
      const double gib = std::stod(size) * (1ULL << 30);
      const double share = static_cast<double>(machine.capacity.host.value()) / gib;
      EXPECT_NEAR(share, 0.873, 0.001) << name;
      EXPECT_EQ(machine.lanes.update, rate * 1e9) << name;
      EXPECT_DOUBLE_EQ(machine.lanes.nvme_read, drives * 6.5e9) << name;
      EXPECT_DOUBLE_EQ(machine.lanes.nvme_write, drives * 5e9) << name;
      EXPECT_EQ(machine.capacity.nvme.value(), drives * 3'600'000'000'000U) << name;
      EXPECT_EQ(machine.lanes.h2d, 25e9) << name;
    }
  }
}

TEST(NamedMachines, AreThoseOfTheFolderAndEachIsReadable) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    files.insert(entry.path().stem());
  }
  std::set<std::string> texts;
  for (const MachineText& text : machine_texts()) {
    texts.emplace(text.name);
    EXPECT_EQ(text.json, text_of(folder() / (std::string(text.name) + ".json"))) << text.name;
  }
  EXPECT_EQ(texts, files);
  const std::vector<std::string> names = machine_names();
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    const MachineDescription machine = machine_from(name);
    EXPECT_EQ(machine.basis, "assumed") << name;
    EXPECT_TRUE(peak_flops(machine.gpu, DType::bf16)) << name;
  }
  // 10 machines of three sizes of memory and one or two drives, the GH200 likewise, and the GB10.
  const std::vector<std::string> built = built_machine_names();
  EXPECT_EQ(built.size(), 11 * 6 + 1U);
  for (const std::string& name : built) {
    EXPECT_NE(std::ranges::find(names, name), names.end()) << name;
    EXPECT_TRUE(name.ends_with("ssd")) << name;
  }
}

/// A source for each figure, and that of measurements for none.
TEST(NamedMachines, NameASourceForEveryFigure) {
  for (const MachineText& text : machine_texts()) {
    const nlohmann::json document = nlohmann::json::parse(text.json);
    std::string all;
    for (const std::string source : document.at("sources")) all += source + "\n";
    for (const char* const what : {"No figure in this file was measured", "matmul", "attention",
                                   "device memory:", "link:", "host", "disk:", "device_memory"}) {
      const bool as_h100 =
          text.name == "dgx-h100";  // "Rates of the GPU ... are those of h100.json"
      EXPECT_TRUE(as_h100 || all.find(what) != std::string::npos) << text.name << ": " << what;
    }
  }
}

TEST(NamedMachines, AnUnknownNameIsAnsweredWithTheNearest) {
  EXPECT_NE(refusal("rtx4090").find("names like it are rtx-4090,"), std::string::npos);
  EXPECT_NE(refusal("H100").find("names like it are h100,"), std::string::npos);
  EXPECT_NE(refusal("5090").find("names like it are rtx-5090,"), std::string::npos);
  EXPECT_NE(refusal("rtx-4090-96gb").find("rtx-4090-64gb"), std::string::npos);
  EXPECT_NE(refusal("rtx-4090-64gb-3ssd").find("rtx-4090-64gb-1ssd"), std::string::npos);
  // Memory comes before drives, and a folder is no machine.
  EXPECT_FALSE(refusal("rtx-4090-1ssd-64gb").empty());
  EXPECT_FALSE(refusal(folder()).empty());
}

TEST(NamedMachines, AFileGoesFirst) {
  const std::filesystem::path file = folder() / "rtx-4090.json";
  EXPECT_EQ(machine_from(file).lanes.h2d, machine_from("rtx-4090").lanes.h2d);
  EXPECT_EQ("rtx-4090: " + machine_from(file).name, machine_from("rtx-4090").name);
}

}  // namespace
}  // namespace spillway::bench::named_machines_test
