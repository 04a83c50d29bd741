#include "runtime/engine/machine/machine_tuning.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/topology.hpp"
#include "runtime/engine/sealed_json.hpp"

namespace spillway::engine {
namespace {

using nlohmann::json;
using nvme_swap::DriveTuning;

constexpr std::size_t kLeastDepth = 8;

std::string kernel_key(const cpu_adam::Kernel& kernel, std::size_t threads) {
  return fmt::format("{}, {} threads, {}", read_topology().cpu_model, threads, kernel.name);
}

std::string drive_key(const std::filesystem::path& directory, nvme_swap::EngineKind engine) {
  struct statvfs filesystem {};
  if (::statvfs(directory.c_str(), &filesystem) != 0) {
    throw_errno(errno, fmt::format("statvfs {}", directory.string()));
  }
  constexpr std::array<std::string_view, 4> kEngines = {"auto", "uring", "aio", "posix"};
  return fmt::format("{:016x}, {}", static_cast<std::uint64_t>(filesystem.f_fsid),
                     kEngines.at(static_cast<std::size_t>(engine)));
}

json to_json(const DriveTuning& drive) {
  return {{"engine", drive.engine},           {"direct", drive.direct},
          {"queue_depth", drive.queue_depth}, {"transfer_bytes", drive.transfer_bytes.value()},
          {"read_gbps", drive.read_gbps},     {"write_gbps", drive.write_gbps},
          {"mixed_gbps", drive.mixed_gbps}};
}

DriveTuning drive_of(const json& entry) {
  return {.engine = entry.at("engine"),
          .direct = entry.at("direct"),
          .queue_depth = entry.at("queue_depth"),
          .transfer_bytes = Bytes{entry.at("transfer_bytes").get<std::uint64_t>()},
          .read_gbps = entry.at("read_gbps"),
          .write_gbps = entry.at("write_gbps"),
          .mixed_gbps = entry.at("mixed_gbps")};
}

}  // namespace

void tune_store(const DriveTunings& drives, nvme_swap::StoreOptions& options) {
  if (drives.empty()) return;
  options.queue_depth = 0;
  options.transfer_bytes = drives.front().transfer_bytes;
  for (const DriveTuning& drive : drives) {
    // One engine serves all directories. What suffices for one kind of traffic in a row leaves the
    // drive waiting where a step reads and writes several tiles at once.
    options.queue_depth += std::max(drive.queue_depth, kLeastDepth);
    options.transfer_bytes = std::min(options.transfer_bytes, drive.transfer_bytes);
  }
}

MachineTuning::MachineTuning(std::filesystem::path file) : file_(std::move(file)) { refresh(); }

void MachineTuning::refresh() {
  if (file_.empty()) return;
  try {
    if (std::filesystem::exists(file_)) read();
  } catch (const std::exception& error) {
    forget();
    products_ = {};
    log_warning("the machine profile is forgotten and begins anew: {}", error.what());
  }
}

void MachineTuning::read() {
  const json document = read_sealed_json(file_);
  for (const auto& [key, distance] : document.at("prefetch").items()) prefetch_[key] = distance;
  for (const auto& [key, drive] : document.at("drives").items()) drives_[key] = drive_of(drive);
  // A file from before there were any has none.
  if (const auto products = document.find("products"); products != document.end()) {
    products_ = model::cuda::GemmChoices::from_json(products->dump());
  }
}

void MachineTuning::write() const {
  if (file_.empty()) return;
  json document{{"prefetch", prefetch_},
                {"drives", json::object()},
                {"products", parse_json(products_.to_json(), {.origin = "the products"})}};
  for (const auto& [key, drive] : drives_) document["drives"][key] = to_json(drive);
  try {
    std::filesystem::create_directories(std::filesystem::absolute(file_).parent_path());
    write_sealed_json(file_, std::move(document));
  } catch (const std::exception& error) {
    log_warning("the machine profile is not kept: {}", error.what());
  }
}

void MachineTuning::forget() {
  prefetch_.clear();
  drives_.clear();
}

std::size_t MachineTuning::prefetch(const cpu_adam::Kernel& kernel, std::size_t threads,
                                    const std::function<std::size_t()>& measure, Keep keep) {
  const std::string key = kernel_key(kernel, threads);
  if (const auto known = prefetch_.find(key); known != prefetch_.end()) return known->second;
  if (keep == Keep::no) return measure();
  const std::size_t distance = prefetch_[key] = measure();
  write();
  return distance;
}

DriveTuning MachineTuning::drive(const std::filesystem::path& directory,
                                 nvme_swap::EngineKind engine,
                                 const std::function<DriveTuning()>& measure, Keep keep) {
  const std::string key = drive_key(directory, engine);
  if (const auto known = drives_.find(key); known != drives_.end()) return known->second;
  if (keep == Keep::no) return measure();
  const DriveTuning& drive = drives_[key] = measure();
  write();
  return drive;
}

void MachineTuning::keep_product(const std::string& key,
                                 const model::cuda::GemmAlgorithm& algorithm) {
  products_.set(key, algorithm);
  write();
}

}  // namespace spillway::engine
