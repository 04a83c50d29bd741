#include "tools/bench/comm_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "comm/baselines/all_reduce.hpp"
#include "runtime/base/error.hpp"
#include "tools/bench/huge_array.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/served_step.hpp"

namespace spillway::bench {
namespace {

using comm::Communicator;
using Target = std::span<std::byte>;

/// What is measured, and the bytes that have to be received for it.
struct Work {
  std::string name;
  double received;  ///< by the rank that receives most
  std::function<void()> run;
  std::function<bool()> exact{};    ///< after `run`; empty: it sums nothing
  double receivers = 1;             ///< as a share of the ranks
  std::function<void()> prepare{};  ///< before each `run`, and not measured
  bool other_mathematics = false;
};

class Measuring {
 public:
  Measuring(Communicator& communicator, const CommCase& what)
      : communicator_(communicator),
        what_(what),
        size_(what.size.value() / granule() * granule()),
        data_(size_),
        scratch_(size_ * std::max<std::size_t>(communicator.ranks() - 1, 2)) {
    check(size_ > 0, ErrorCode::invalid_argument,
          fmt::format("{} are too few for {} ranks; use at least {} bytes", format_bytes(what.size),
                      ranks(), granule()));
    std::memset(scratch_.data(), 0, scratch_bytes());
  }

  CommMeasurement run() {
    const std::vector<Work> works = list();
    CommMeasurement measurement{.ranks = communicator_.ranks()};
    measurement.results.resize(works.size());
    std::vector<double> copies;
    for (std::size_t repetition = 0; repetition <= what_.repetitions; ++repetition) {
      const double copy = seconds_of([this] { copy_received(); });
      if (repetition > 0) copies.push_back(copy);  // the first time pages are new
      for (std::size_t k = 0; k < works.size(); ++k) {
        measure(works[k], repetition, measurement.results[k]);
      }
    }
    const double received = all_reduced_bytes();
    const double copy = *std::ranges::min_element(copies);
    measurement.copy_gigabytes_per_second = received * static_cast<double>(ranks()) / copy / 1e9;
    for (std::size_t k = 0; k < works.size(); ++k) {
      const double linked = what_.link_gigabytes_per_second
                                ? works[k].received / (*what_.link_gigabytes_per_second * 1e9)
                                : 0;
      measurement.results[k].least_seconds =
          std::max(copy * works[k].received * works[k].receivers / received, linked);
    }
    return measurement;
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return communicator_.ranks(); }
  /// Every rank's part holds whole pages of elements.
  [[nodiscard]] std::size_t granule() const { return kPageBytes * communicator_.ranks(); }
  [[nodiscard]] std::size_t scratch_bytes() const {
    return size_ * std::max<std::size_t>(ranks() - 1, 2);
  }
  [[nodiscard]] Target data() const { return {data_.data(), size_}; }
  [[nodiscard]] std::span<const float> floats() const {
    return {reinterpret_cast<const float*>(data_.data()), size_ / sizeof(float)};
  }
  [[nodiscard]] Target scratch() const { return {scratch_.data(), scratch_bytes()}; }
  [[nodiscard]] Target own_part() const {
    const std::size_t part = size_ / ranks();
    return data().subspan(part * communicator_.rank().value(), part);
  }
  [[nodiscard]] double all_reduced_bytes() const {
    const double others = static_cast<double>(std::max<std::size_t>(ranks() - 1, 1));
    return 2 * others / static_cast<double>(ranks()) * static_cast<double>(size_);
  }

  std::vector<Work> list() {
    const double once = all_reduced_bytes() / 2;
    std::vector<Work> works;
    works.push_back(
        {"all_gather", once, [this] { communicator_.all_gather(own_part(), data()).wait(); }});
    works.push_back(
        {"reduce_scatter", once, [this] {
           communicator_.reduce_scatter(data(), own_part(), {what_.dtype, what_.dtype}).wait();
         }});
    works.push_back({.name = "broadcast",
                     .received = static_cast<double>(size_),
                     .run = [this] { communicator_.broadcast(data(), Rank{0}).wait(); },
                     .exact = {},
                     .receivers = once / static_cast<double>(size_)});
    works.push_back({"all_to_all", once,
                     [this] { communicator_.all_to_all(data(), scratch().first(size_)).wait(); }});
    works.push_back({"all_reduce", 2 * once,
                     [this] { communicator_.all_reduce(data(), what_.dtype).wait(); },
                     [this] { return sum_is_exact(data(), 0); }});
    for (const comm::Baseline baseline : comm::kBaselines) {
      works.push_back({fmt::format("all_reduce.{}", comm::name_of(baseline)), 2 * once,
                       [this, baseline] {
                         comm::all_reduce(baseline, communicator_, data(), scratch(), what_.dtype);
                       },
                       [this] { return sum_is_exact(data(), 0); }});
    }
    if (ranks() > 1 && what_.dtype == DType::fp32) list_servers(works);
    return works;
  }

  /// Rank 0 is the server, which has no data of its own.
  void list_servers(std::vector<Work>& works) {
    for (const comm::ServerMode mode : comm::kServerModes) {
      Work work{.name = fmt::format("parameter_server.{}", comm::name_of(mode)),
                .received = all_reduced_bytes(),
                .run = [this] { served_->run(); }};
      work.prepare = [this, mode] {
        served_.reset();
        served_.emplace(communicator_, mode, floats());
      };
      work.other_mathematics = comm::is_other_mathematics(mode);
      if (!work.other_mathematics) {
        work.exact = [this] { return sum_is_exact(std::as_bytes(served_->values()), 1); };
      }
      works.push_back(std::move(work));
    }
  }

  void measure(const Work& work, std::size_t repetition, CommResult& result) {
    fill();
    if (work.prepare) work.prepare();
    Bytes sent;
    const double seconds = seconds_of([&] {
      const Bytes before = communicator_.sent();
      work.run();
      sent = communicator_.sent() - before;
    });
    sent = most(sent.value());
    if (repetition == 0) {
      result.name = work.name;
      result.sent = sent;
      result.other_mathematics = work.other_mathematics;
      if (work.exact) result.exact = most(work.exact() ? 0 : 1) == Bytes{0};
      return;
    }
    result.seconds.push_back(seconds);
  }

  /// Element i of rank r is 1 / (1 + (i + r) % 7): sums depend on the order of ranks.
  [[nodiscard]] float value(std::size_t index, std::size_t rank) const {
    const float exact = 1.0F / static_cast<float>(1 + (index + rank) % 7);
    if (what_.dtype == DType::bf16) return from_bf16(to_bf16(exact));
    return what_.dtype == DType::fp16 ? from_fp16(to_fp16(exact)) : exact;
  }

  void store(std::byte* target, float value) const {
    const std::uint16_t bits = what_.dtype == DType::bf16 ? to_bf16(value) : to_fp16(value);
    if (what_.dtype == DType::fp32) {
      std::memcpy(target, &value, sizeof value);
    } else {
      std::memcpy(target, &bits, sizeof bits);
    }
  }

  void fill() {
    constexpr std::size_t kPeriod = 7;
    const std::size_t element = size_of(what_.dtype);
    std::vector<std::byte> pattern(kPeriod * element);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      store(&pattern[i * element], value(i, communicator_.rank().value()));
    }
    for (std::size_t first = 0; first < size_; first += pattern.size()) {
      std::memcpy(data_.data() + first, pattern.data(), std::min(pattern.size(), size_ - first));
    }
  }

  /// Compares `actual` with the sum of the values of the ranks from `first` on.
  [[nodiscard]] bool sum_is_exact(std::span<const std::byte> actual, std::size_t first) const {
    const std::size_t element = size_of(what_.dtype);
    std::byte wanted[sizeof(float)];
    for (std::size_t i = 0; i < size_ / element; ++i) {
      float sum = value(i, first);
      for (std::size_t rank = first + 1; rank < ranks(); ++rank) sum += value(i, rank);
      store(wanted, sum);
      if (std::memcmp(wanted, actual.data() + i * element, element) != 0) return false;
    }
    return true;
  }

  /// What has to be received for an all-reduce, from memory to memory, half of it at a time.
  void copy_received() {
    const auto bytes = static_cast<std::size_t>(all_reduced_bytes() / 2);
    std::memcpy(scratch_.data() + size_, data_.data(), bytes);
    std::memcpy(data_.data(), scratch_.data() + size_, bytes);
  }

  /// Returns the time until all ranks are done, as the slowest of them sees it.
  [[nodiscard]] double seconds_of(const std::function<void()>& work) {
    communicator_.barrier().wait();
    const auto start = std::chrono::steady_clock::now();
    work();
    communicator_.barrier().wait();
    const auto passed = std::chrono::steady_clock::now() - start;
    return 1e-9 * static_cast<double>(most(static_cast<std::uint64_t>(passed.count())).value());
  }

  [[nodiscard]] Bytes most(std::uint64_t mine) {
    std::vector<std::uint64_t> all(ranks());
    communicator_
        .all_gather(std::as_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{all}))
        .wait();
    return Bytes{*std::ranges::max_element(all)};
  }

  Communicator& communicator_;
  const CommCase what_;
  const std::size_t size_;
  HugeArray data_;
  HugeArray scratch_;
  std::optional<ServedStep> served_;
};

}  // namespace

double CommResult::median() const { return median_of(seconds); }

CommMeasurement measure_comm(Communicator& communicator, const CommCase& what) {
  check(what.repetitions > 0, ErrorCode::invalid_argument, "--repetitions is 0; use at least 1");
  return Measuring(communicator, what).run();
}

}  // namespace spillway::bench
