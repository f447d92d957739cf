# Flags of each instruction set. -O3 for all three, so that the loops over lanes unroll the same way everywhere.
set(SPLASH_SCALAR_FLAGS -O3)
set(SPLASH_AVX2_FLAGS -O3 -mavx2 -mfma -mf16c -mbmi -mbmi2)
set(SPLASH_AVX512VNNI_FLAGS -O3 -mavx2 -mfma -mf16c -mbmi -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl
                            -mavx512vnni -mprefer-vector-width=512
                            # GCC 12 warns about its own _mm512_undefined_*() in avx512fintrin.h.
                            -Wno-uninitialized -Wno-maybe-uninitialized)
