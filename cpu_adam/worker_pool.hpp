// The CPU workers: a oneTBB arena and one thread that runs the queue of tasks inside it. Everything
// that runs on the cpu lane runs here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/base/inline_task.hpp"
#include "runtime/base/ticket.hpp"
#include "runtime/base/wake_signal.hpp"

namespace spillway::cpu_adam {

/// Where update threads may run. `node`: on the memory node of the pages that they are given, where
/// there are several nodes. `core`: each on a core of its own, for measurements and machines that
/// do nothing else. None of them changes a bit.
enum class Binding : std::uint8_t { none, node, core };

struct WorkerPoolOptions {
  std::size_t threads = 0;       ///< 0: one a physical core that this process may use
  std::size_t queue_depth = 64;  ///< tasks submitted and not yet finished
  WakeSignal* wake = nullptr;    ///< notified whenever a task ends
  Binding binding = Binding::node;
};

/// Tasks run one after another in submission order (the cpu lane is serial); each may spread over
/// the workers with `parallel_for`. Workers flush denormals to zero (FTZ and DAZ).
/// `submit` is for the control thread; `parallel_for` for the task that is running.
/// A task that throws fails alone: its ticket rethrows, the next task runs. Tickets must not
/// outlive the pool; its destructor runs what is queued.
class WorkerPool final : public TicketSource {
 public:
  explicit WorkerPool(const WorkerPoolOptions& options);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Waits for a free queue entry if all are taken. Allocates nothing. A finished task gives its
  /// entry back at once, unless it failed: then its ticket must be waited for first, and submit
  /// throws that task's error once the queue has come round to the entry.
  Ticket submit(InlineTask task);
  [[nodiscard]] std::size_t threads() const;

  /// Calls body(first, last) over a static partition of [0, count) whose cuts are multiples of
  /// `grain`; returns when all are done. Rethrows the first failure. The cuts, and which memory
  /// node runs which part, depend on count, grain and threads() alone: a page of an array that is
  /// always cut alike is always touched by the same node.
  template <class Body>
  void parallel_for(std::size_t count, std::size_t grain, const Body& body) {
    run_partitioned(
        count, grain,
        [](const void* context, std::size_t first, std::size_t last) {
          (*static_cast<const Body*>(context))(first, last);
        },
        &body);
  }

  [[nodiscard]] bool ready(std::uint32_t slot) override;
  void finish(std::uint32_t slot) override;

 private:
  using RangeFunction = void (*)(const void* context, std::size_t first, std::size_t last);
  void run_partitioned(std::size_t count, std::size_t grain, RangeFunction function,
                       const void* context);

  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace spillway::cpu_adam
