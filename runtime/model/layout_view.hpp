// A source of parameters seen in another layout of the same model: in tiles or whole.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::model {

class LayoutView final : public ParameterSource {
 public:
  /// Turns blocks of `stored`, from `source`, into those of `wanted`. All must outlive this.
  LayoutView(const ParameterSource& source, const ModelLayout& stored, const ModelLayout& wanted);

  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;

 private:
  struct Part {
    std::uint32_t block = 0;
    const ParameterTensor* tensor = nullptr;
  };

  /// Reads elements of a whole tensor, from `first` on.
  void read_tensor(const std::string& name, ElementCount first, std::span<float> target) const;

  const ParameterSource& source_;
  const ModelLayout& wanted_;
  std::map<std::string, std::vector<Part>> parts_;  ///< of a tensor, in order
};

}  // namespace spillway::model
