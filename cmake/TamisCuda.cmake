# tamis_embed_cuda(target) embeds the CUDA sources *.cu of the operators as text. They are compiled when they are first used
# (tamis/ops/cuda), so that no build needs CUDA.

function(tamis_embed_cuda target)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tamis/ops/*/*.cu)
  tamis_embed(${target} FILES ${files})
endfunction()
