// RunningMedian: the median of everything seen so far, at any time, in logarithmic time a value.
//
// A value type; one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace spillway::engine {

class RunningMedian {
 public:
  void add(double value) {
    const bool upper = upper_.empty() || value >= upper_.front();
    upper ? push(upper_, value, std::greater<>{}) : push(lower_, value, std::less<>{});
    if (upper_.size() > lower_.size() + 1)
      push(lower_, pop(upper_, std::greater<>{}), std::less<>{});
    if (lower_.size() > upper_.size()) push(upper_, pop(lower_, std::less<>{}), std::greater<>{});
  }

  [[nodiscard]] std::size_t count() const { return lower_.size() + upper_.size(); }
  /// Returns the middle value of an odd number of them, the larger of the middle two of an even
  /// one; 0 of none.
  [[nodiscard]] double value() const { return upper_.empty() ? 0 : upper_.front(); }

 private:
  template <class Order>
  static void push(std::vector<double>& heap, double value, Order order) {
    heap.push_back(value);
    std::ranges::push_heap(heap, order);
  }
  template <class Order>
  static double pop(std::vector<double>& heap, Order order) {
    std::ranges::pop_heap(heap, order);
    const double value = heap.back();
    heap.pop_back();
    return value;
  }

  std::vector<double> lower_;  // a heap with its largest in front
  std::vector<double> upper_;  // a heap with its smallest in front; as many, or one more
};

}  // namespace spillway::engine
