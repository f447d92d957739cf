# The front door. `make serve`: set-up, build, serve the built-in model. `make test`: set-up, build, all tests.
MAKEFLAGS += --no-print-directory
JOBS ?= $(shell nproc)
# The CUDA backend. auto: as the machine and the network allow; on: a build without it is an error; off: none. Unstated, a build
# folder stays as it is, and a new one is auto.
ifdef SPLASH_CUDA
CUDA_STAMP := build/.cuda-$(SPLASH_CUDA)
endif
CUDA_WISH := $(or $(SPLASH_CUDA),auto)
ASSETS := build/test-assets

.PHONY: serve test test-tsan build setup clean

serve: build
	@build/splash serve $(MODEL)

build: build/build.ninja
	@ninja -C build -j$(JOBS) --quiet splash

setup:
	@scripts/setup.sh

build/build.ninja: CMakeLists.txt CMakePresets.json cmake/splash.cmake cmake/cuda.cmake $(CUDA_STAMP) | setup
	@cmake --preset release -DSPLASH_CUDA=$(CUDA_WISH) >build-configure.log 2>&1 || { cat build-configure.log; exit 1; }
	@grep '^setup:' build-configure.log || true
	@rm -f build-configure.log

build/.cuda-%:
	@mkdir -p build && rm -f build/.cuda-* && touch $@

test: setup build/build.ninja
	@scripts/test.sh

# The programs with threads of their own, under ThreadSanitizer (not part of `make test`).
test-tsan: setup
	@cmake --preset tsan >/dev/null
	@ninja -C build-tsan -j$(JOBS) --quiet base_test engine_test http_test api_test
	@ctest --test-dir build-tsan --output-on-failure -R '^(base_test|engine_test|http_test|api_test)$$'

clean:
	rm -rf build build-dev build-asan build-tsan
