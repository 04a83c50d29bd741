// TensorCut: how the ranks of a tensor group cut the matrices of a model among them, and what that
// divides and sends. These are closed formulas, checked against a count of words in
// tests/plan/tensor_cut_test.cpp. No run of this program is cut in two or three dimensions: those
// are on paper. What a collective costs beside its bytes, and the few words for each token that
// norms exchange, are left out.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/plan/predict/flops.hpp"

namespace spillway::plan {

enum class TensorMethod : std::uint8_t {
  columns,   ///< 1-D: columns of one matrix, rows of the next (Shoeybi et al. 2019, section 3)
  sequence,  ///< 1-D, and tokens between matrices are cut too (Korthikanti et al. 2022, section 4)
  square,    ///< 2-D, SUMMA on q * q ranks (Xu et al. 2021, Optimus, section 3)
  layered,   ///< 2.5-D, d layers of q * q (Wang et al. 2021, Tesseract; Solomonik & Demmel 2011)
  cube,      ///< 3-D, q * q * q ranks (Bian et al. 2021, section 3)
};

[[nodiscard]] std::string_view name_of(TensorMethod method);

struct TensorCut {
  TensorMethod method = TensorMethod::columns;
  std::uint32_t side = 1;   ///< q; of a 1-D cut, the number of ranks
  std::uint32_t depth = 1;  ///< d; above one only where `method` is layered

  [[nodiscard]] std::uint32_t ranks() const;
  /// Number of parts that parameters are cut into. The layers of a 2.5-D cut have copies.
  [[nodiscard]] std::uint32_t parameter_parts() const;
  /// Whether a tensor between two matrices that is as wide as the model is cut too.
  [[nodiscard]] bool cuts_boundaries() const { return method != TensorMethod::columns; }
  bool operator==(const TensorCut&) const = default;
};

/// Returns all cuts among so many ranks. For one rank, that is the one that cuts nothing.
[[nodiscard]] std::vector<TensorCut> cuts_among(std::uint32_t ranks);

/// A product of `tokens` rows with a matrix of inputs * outputs. A 1-D cut takes the columns of one
/// matrix and the rows of the next, so that nothing is sent between the two.
struct Product {
  double tokens = 0;
  double inputs = 0;
  double outputs = 0;
  bool by_rows = false;
};

/// Elements that each rank sends, on average, while forward or backward of a product runs. No
/// gathered operand is kept for backward: it is gathered once more.
struct SentElements {
  double forward = 0;
  double backward = 0;
};
[[nodiscard]] SentElements sent_elements(const TensorCut& cut, const Product& product);

/// Returns the products of a transformer layer: query, key and value; output of attention; first
/// and second half of the MLP.
[[nodiscard]] std::array<Product, 4> layer_products(const DecoderShape& shape, double tokens);
/// Returns the product of the head, whose vocabulary a 1-D cut divides.
[[nodiscard]] Product head_product(const DecoderShape& shape, double tokens);
/// Returns the elements that each rank sends, on average, for all products of a layer.
[[nodiscard]] SentElements sent_by_layer(const TensorCut& cut, const DecoderShape& shape,
                                         double tokens);

}  // namespace spillway::plan
