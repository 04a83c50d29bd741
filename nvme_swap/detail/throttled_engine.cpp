#include "nvme_swap/detail/throttled_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nvme_swap/detail/held_results.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap::detail {
namespace {

class ThrottledEngine final : public IoEngine {
 public:
  using Clock = HeldResults::Clock;

  ThrottledEngine(std::unique_ptr<IoEngine> inner, const EngineOptions& options, double rate)
      : inner_(std::move(inner)),
        nanoseconds_per_byte_(1.0 / rate),
        held_(options.queue_depth, options.wake),
        scratch_(options.queue_depth) {
    in_flight_.reserve(options.queue_depth);
    check(std::isfinite(rate) && rate > 0, ErrorCode::invalid_argument,
          fmt::format("a disk of {} GB/s is not possible", rate));
  }

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] EngineAbilities abilities() const override { return inner_->abilities(); }

  [[nodiscard]] std::string_view failure() const override { return inner_->failure(); }

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) override {
    // What is held back here still occupies the queue.
    const std::size_t room = scratch_.size() - in_flight_.size() - held_.size();
    const std::size_t taken = inner_->submit(requests.first(std::min(room, requests.size())));
    const Clock::time_point now = Clock::now();
    for (const IoRequest& request : requests.first(taken)) {
      const double cost = static_cast<double>(request.length) * nanoseconds_per_byte_;
      free_at_ = std::max(now, free_at_) + std::chrono::nanoseconds(std::llround(cost));
      in_flight_.push_back({.tag = request.tag, .due = free_at_});
    }
    return taken;
  }

  [[nodiscard]] std::size_t poll(std::span<IoResult> results) override {
    collect();
    return held_.take_due(results);
  }

  void wait() override {
    collect();
    if (held_.empty() && in_flight_.empty()) return;
    if (held_.empty()) {
      inner_->wait();
      collect();
    }
    if (!held_.empty()) held_.wait_for_first();
  }

 private:
  struct InFlight {
    std::uint64_t tag;
    Clock::time_point due;
  };

  void collect() {
    const std::size_t count = inner_->poll(scratch_);
    for (std::size_t i = 0; i < count; ++i) {
      const auto entry =
          std::find_if(in_flight_.begin(), in_flight_.end(),
                       [&](const InFlight& other) { return other.tag == scratch_[i].tag; });
      SPILLWAY_ASSERT(entry != in_flight_.end());
      held_.hold(scratch_[i], entry->due);
      in_flight_.erase(entry);
    }
  }

  std::unique_ptr<IoEngine> inner_;
  const double nanoseconds_per_byte_;  // 1 GB/s moves a byte a nanosecond
  Clock::time_point free_at_{};        // when the disk has done all that it was given
  std::vector<InFlight> in_flight_;
  HeldResults held_;
  std::vector<IoResult> scratch_;
};

}  // namespace

std::unique_ptr<IoEngine> make_throttled_engine(std::unique_ptr<IoEngine> inner,
                                                const EngineOptions& options,
                                                double gigabytes_per_second) {
  return std::make_unique<ThrottledEngine>(std::move(inner), options, gigabytes_per_second);
}

}  // namespace spillway::nvme_swap::detail
