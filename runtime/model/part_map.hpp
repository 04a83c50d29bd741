// PartMap: where the elements of a part's blocks (TensorPart) are in those of the whole model, and
// the other way round. PartView: a source of whole parameters seen as those of a part. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::model {

/// Elements that lie side by side in a block of a part and in one of the whole model.
struct PartRun {
  BlockIndex block;  ///< the other layout's
  ElementCount first;
  std::uint64_t at = 0;  ///< where they begin in the range that was asked for
  std::uint64_t count = 0;
};

class PartMap {
 public:
  using Visit = std::function<void(const PartRun&)>;

  PartMap(const ModelConfig& config, const TensorPart& part);

  [[nodiscard]] const ModelLayout& part() const { return part_; }
  /// Visits where the elements [first, first + count) of a block of the part are in the whole
  /// model. Padding is nowhere.
  void visit_whole(BlockIndex block, ElementCount first, ElementCount count,
                   const Visit& visit) const;
  /// Visits where elements of a block of the whole model are in the part, as far as it has them.
  /// What every part has is visited in the first part alone.
  void visit_part(BlockIndex block, ElementCount first, ElementCount count,
                  const Visit& visit) const;

 private:
  /// Rows of columns side by side: row r lies at `part_first` + r * `part_stride` in the part, and
  /// at `whole_first` + r * `whole_stride` in the whole model.
  struct Rectangle {
    std::uint32_t part_block = 0;
    std::uint32_t whole_block = 0;
    std::uint64_t part_first = 0, part_stride = 0;
    std::uint64_t whole_first = 0, whole_stride = 0;
    std::uint64_t rows = 0, columns = 0;
    bool shared = false;
  };
  void add(std::uint32_t block, const ParameterTensor& tensor, bool shared, std::uint32_t of_whole,
           std::uint64_t whole_first);

  ModelLayout part_;
  std::vector<std::vector<Rectangle>> of_part_, of_whole_;  ///< by block
};

class PartView final : public ParameterSource {
 public:
  /// Reads blocks of the whole model in `whole`. Both outlive this.
  PartView(const ParameterSource& whole, const PartMap& map) : whole_(whole), map_(map) {}

  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;

 private:
  const ParameterSource& whole_;
  const PartMap& map_;
};

}  // namespace spillway::model
