// A model whose passes the test runs: tensors, their gradients, and a trainer of them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/engine/embedded_trainer.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine {

using Tensor = std::vector<float>;

inline std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return std::as_bytes(std::span(tensor));
}

inline std::vector<std::byte> in_bf16(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.size() * 2);
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    const std::uint16_t bits = to_bf16(tensor[i]);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}

inline Tensor normal(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> distribution;
  Tensor values(count);
  std::ranges::generate(values, [&] { return distribution(random); });
  return values;
}

/// Tensors of awkward sizes in two groups; the second is larger than a tile.
struct Model {
  std::vector<std::size_t> sizes{3, 5000, 257, 1, 9000};
  std::vector<std::uint32_t> groups{0, 0, 1, 1, 0};
  std::vector<Tensor> values;

  explicit Model(std::uint64_t seed = 7) {
    for (const std::size_t size : sizes) values.push_back(normal(size, seed++));
  }

  [[nodiscard]] std::vector<EmbeddedParameter> parameters(
      const std::vector<std::vector<std::byte>>& starts) const {
    std::vector<EmbeddedParameter> list;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      list.push_back({.name = "layer." + std::to_string(i),
                      .elements = sizes[i],
                      .group = groups[i],
                      .values = starts[i].data()});
    }
    return list;
  }

  [[nodiscard]] std::vector<std::vector<std::byte>> starts(DType dtype) const {
    std::vector<std::vector<std::byte>> list;
    for (const Tensor& tensor : values) {
      const auto wide = bytes_of(tensor);
      list.push_back(dtype == DType::fp32 ? std::vector<std::byte>(wide.begin(), wide.end())
                                          : in_bf16(tensor));
    }
    return list;
  }

  [[nodiscard]] Tensor gradient(std::size_t parameter, int step) const {
    Tensor tensor =
        normal(sizes[parameter], 1000 + 100 * static_cast<std::uint64_t>(step) + parameter);
    // Those of one parameter are larger than those of another.
    for (float& value : tensor) value *= static_cast<float>(1U << (2 * (parameter % 5)));
    return tensor;
  }
};

inline EmbeddedOptions options_for(DType dtype = DType::fp32) {
  EmbeddedOptions options;
  options.dtype = dtype;
  options.state_format = dtype == DType::bf16 ? StateFormat::split : StateFormat::fp32;
  options.groups = {{.lr = 1e-2, .weight_decay = 0.1}, {.lr = 3e-3}};
  options.tile_parameters = 2 * kLeafParameters;  // which parameters share
  options.threads = 2;
  return options;
}

class EmbeddedTrainerTest : public testing::Test {
 protected:
  std::unique_ptr<EmbeddedTrainer> make(const EmbeddedOptions& options) {
    const auto starts = model_.starts(options.dtype);
    return std::make_unique<EmbeddedTrainer>(options, model_.parameters(starts));
  }

  void give(EmbeddedTrainer& trainer, std::size_t parameter, int step) {
    const Tensor gradient = model_.gradient(parameter, step);
    const auto index = static_cast<std::uint32_t>(parameter);
    if (trainer.options().dtype == DType::fp32) {
      trainer.add_gradient(index, bytes_of(gradient));
    } else {
      trainer.add_gradient(index, in_bf16(gradient));
    }
  }

  /// Delivers what backward would, the last parameter first.
  void backward(EmbeddedTrainer& trainer, int step) {
    for (std::size_t i = model_.sizes.size(); i-- > 0;) give(trainer, i, step);
  }

  std::vector<std::byte> image(EmbeddedTrainer& trainer) {
    trainer.wait();
    std::vector<std::byte> all;
    for (std::uint32_t i = 0; i < trainer.size(); ++i) {
      const auto values = trainer.values(i);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::vector<float> state(EmbeddedTrainer& trainer) {
    std::vector<float> all;
    for (std::uint32_t i = 0; i < trainer.size(); ++i) {
      const std::size_t count = model_.sizes[i];
      std::vector<float> master(count), m(count), v(count);
      trainer.read_state(i, master, m, v);
      for (const auto* part : {&master, &m, &v}) all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  std::vector<std::byte> train(EmbeddedTrainer& trainer, int first, int last) {
    for (int step = first; step <= last; ++step) {
      backward(trainer, step);
      trainer.step({.gradient_divisor = 2, .max_norm = 1});
    }
    return image(trainer);
  }

  ScratchDirectory directory_{"embedded"};
  Model model_;
};

}  // namespace spillway::engine
