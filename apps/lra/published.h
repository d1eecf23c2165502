// Published results of Long Range Arena, from published.csv: accuracies in per cent of Tay et al. 2021 (table 1, where
// sizes of models differ between systems), FlashAttention (Dao et al. 2022, table 3), Skyformer (Chen et al. 2021,
// table 1) and Nystromformer (Xiong et al. 2021, table 1), the last two with two layers that are 64 wide; speed and
// memory for byte-level text on 16 TPU v3, batch 32 (Tay et al. 2021, table 2).
#pragma once
#include <optional>
#include <string>

namespace runnel {

// Nothing where there is none.
std::optional<double> published(const std::string& attention, const std::string& column);

}  // namespace runnel
