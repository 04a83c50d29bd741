// The steady state of the CPU lane calls neither operator new nor anything that does. A program of
// its own, because it replaces the operators.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/gradient_norm.hpp"
#include "cpu_adam/worker_pool.hpp"

namespace {

std::atomic<std::size_t> allocations{0};

void* counted_allocation(std::size_t size, std::size_t alignment) {
  ++allocations;
  void* const memory =
      std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Not inlined: GCC would see memory of operator new meet free, and warn.
[[gnu::noinline]] void release(void* memory) { std::free(memory); }

constexpr std::size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(std::size_t size) { return counted_allocation(size, kDefault); }
void* operator new[](std::size_t size) { return counted_allocation(size, kDefault); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted_allocation(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace spillway::cpu_adam::allocation_test {
namespace {

TEST(CpuLane, AllocatesNothingInItsSteadyState) {
  constexpr std::size_t kCount = 64 * kLeafParameters;
  WakeSignal wake;
  WorkerPool pool({.threads = 3, .queue_depth = 8, .wake = &wake});
  std::vector<std::uint16_t> gradient(kCount, 0x3c00), parameters(kCount);
  std::vector<float> master(kCount, 1), m(kCount), v(kCount), sum(kCount);
  std::vector<double> leaves(64);
  const Isa isa = best_isa();
  const UpdateFunction update = find_kernel(isa, DType::bf16, DType::bf16).update;
  const auto step = [&](std::uint64_t t) {
    const UpdateScalars scalars = make_scalars({}, t, 1);
    Ticket tickets[4];
    tickets[0] = pool.submit([&] {
      pool.parallel_for(kCount, kLeafParameters, [&](std::size_t first, std::size_t last) {
        accumulate(isa, DType::bf16, gradient.data() + first,
                   std::span(sum).subspan(first, last - first), true);
      });
    });
    tickets[1] = pool.submit([&] {
      pool.parallel_for(kCount, kLeafParameters, [&](std::size_t first, std::size_t last) {
        round_gradient(isa, DType::bf16, sum.data() + first, gradient.data() + first, last - first);
      });
    });
    tickets[2] = pool.submit([&] {
      pool.parallel_for(kCount, kLeafParameters, [&](std::size_t first, std::size_t last) {
        sum_squares(
            isa, DType::bf16, gradient.data() + first, last - first,
            std::span(leaves).subspan(first / kLeafParameters, (last - first) / kLeafParameters));
      });
    });
    tickets[3] = pool.submit([&] {
      pool.parallel_for(kCount, kLeafParameters, [&](std::size_t first, std::size_t last) {
        update(scalars, {.gradient = gradient.data() + first,
                         .master_in = master.data() + first,
                         .m_in = m.data() + first,
                         .v_in = v.data() + first,
                         .master_out = master.data() + first,
                         .m_out = m.data() + first,
                         .v_out = v.data() + first,
                         .parameters_out = parameters.data() + first,
                         .count = last - first});
      });
    });
    for (Ticket& ticket : tickets) {
      while (!ticket.ready()) wake.wait_for(std::chrono::milliseconds{100});
      ticket.wait();
    }
    static_cast<void>(sum_leaves(leaves));
  };
  for (std::uint64_t t = 1; t <= 20; ++t) step(t);
  const std::size_t before = allocations;
  EXPECT_GT(before, 0U);  // the counter works
  for (std::uint64_t t = 21; t <= 500; ++t) step(t);
  EXPECT_EQ(allocations - before, 0U);
}

}  // namespace
}  // namespace spillway::cpu_adam::allocation_test
