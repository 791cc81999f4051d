# Included by the Makefile. CUDA and NCCL are opened at run time: the build wants their headers, and nvcc for the kernels. Without, it
# leaves out what needs them, and `wsync version` says so (HAVE_CUDA=, HAVE_NCCL=, HAVE_NVCC= do that on purpose).
CUDA_HOME ?= $(patsubst %/include/cuda.h,%,$(firstword $(wildcard /usr/local/cuda/include/cuda.h /usr/include/cuda.h)))
NCCL_HOME ?= $(patsubst %/include/nccl.h,%,$(firstword $(wildcard $(CUDA_HOME)/include/nccl.h /usr/local/include/nccl.h /usr/include/nccl.h)))
HAVE_CUDA := $(wildcard $(CUDA_HOME)/include/cuda.h)
HAVE_NCCL := $(if $(HAVE_CUDA),$(wildcard $(NCCL_HOME)/include/nccl.h))
HAVE_NVCC := $(if $(HAVE_CUDA),$(or $(wildcard $(CUDA_HOME)/bin/nvcc),$(shell command -v nvcc 2>/dev/null)))
GPU_FLAGS := $(if $(HAVE_CUDA),-DWS_HAVE_CUDA=1) $(if $(HAVE_NCCL),-DWS_HAVE_NCCL=1) $(if $(HAVE_NVCC),-DWS_HAVE_NVCC=1)
gpu_headers = $(if $(HAVE_CUDA),-isystem $(CUDA_HOME)/include) $(if $(HAVE_NCCL),-isystem $(NCCL_HOME)/include)
# UCX, by the same rule: opened at run time, and its headers are Debian's libucx-dev (HAVE_UCX= builds without).
HAVE_UCX := $(firstword $(wildcard /usr/include/ucp/api/ucp.h /usr/local/include/ucp/api/ucp.h))
LEFT_OUT := $(addprefix transports/device/,$(if $(HAVE_CUDA),cuda_absent.c,cuda_driver.c cuda_ops.c cuda_share.c)) \
	$(addprefix transports/nccl/,$(if $(HAVE_NCCL),driver_absent.c,driver.c)) \
	$(addprefix transports/ucx/,$(if $(HAVE_UCX),engine_absent.c,engine.c))
# Machine code for these; others, and later ones, take the intermediate code of the oldest that nvcc knows.
CUDA_ARCHS := 80 90 100
ifneq ($(HAVE_NVCC),)
CUDA_KNOWN := $(patsubst compute_%,%,$(shell $(HAVE_NVCC) --list-gpu-arch 2>/dev/null))
CUDA_OLDEST := $(firstword $(filter 75 $(CUDA_ARCHS),$(CUDA_KNOWN)))
NVCC_FLAGS = -std=c++17 -O3 -I. -fatbin -Werror all-warnings \
	$(patsubst %,-gencode=arch=compute_%,$(foreach a,$(filter $(CUDA_ARCHS),$(CUDA_KNOWN)),$a$(comma)code=sm_$a) \
	$(CUDA_OLDEST)$(comma)code=compute_$(CUDA_OLDEST))
comma := ,
FATBIN := $(TOP)/transports/device/kernels/kernels.fatbin
endif
# What `wsync version` says of them.
defined_as = $(shell sed -n 's/^\#define $(1) *\([0-9]*\).*/\1/p' $(2))
CUDA_NUMBER := $(if $(HAVE_CUDA),$(call defined_as,CUDA_VERSION,$(HAVE_CUDA)))
NCCL_NUMBERS := $(if $(HAVE_NCCL),$(foreach n,MAJOR MINOR PATCH,$(call defined_as,NCCL_$(n),$(HAVE_NCCL))))
NVCC_RELEASE := $(if $(HAVE_NVCC),$(shell $(HAVE_NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'))
GPU_RELEASES = $(if $(HAVE_CUDA),-DWS_CUDA_RELEASE='"$(shell echo $$(($(CUDA_NUMBER) / 1000)).$$(($(CUDA_NUMBER) % 1000 / 10)))"') \
	$(if $(HAVE_NCCL),-DWS_NCCL_RELEASE='"$(subst $() ,.,$(NCCL_NUMBERS))"') \
	$(if $(HAVE_NVCC),-DWS_NVCC_RELEASE='"$(NVCC_RELEASE)"' \
	-DWS_KERNEL_ARCHS='"$(addprefix sm_,$(filter $(CUDA_ARCHS),$(CUDA_KNOWN))) and compute_$(CUDA_OLDEST) (intermediate code)"')
