# wsync. `make help` lists the targets. Sources are found by folder; layers are archives that are linked top
# down (mount-helpers -> fs -> backends -> transports), so an arrow that points up does not link.

VERSION := 0.2.0
# What `wsync version` says of a build from git, between releases; a source release knows it, too.
COMMIT := $(if $(wildcard .git),$(shell git describe --always --dirty --exclude '*' 2>/dev/null),$(word 2,$(shell cat .release 2>/dev/null)))
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
# Where mount(8) looks for its helpers; a PREFIX of one's own keeps to itself.
SBINDIR ?= $(if $(filter /usr /usr/%,$(PREFIX)),/sbin,$(PREFIX)/sbin)
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d

CC := gcc
CLANG := clang
SAN ?=
TOP := build
B := $(if $(SAN),$(TOP)/$(SAN),$(TOP))
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' $(1) $(2);)

SAN_FLAGS_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SAN_FLAGS_undefined := -fsanitize=undefined -fno-sanitize-recover=undefined
SAN_FLAGS_thread := -fsanitize=thread
ifneq ($(SAN),)
ifeq ($(SAN_FLAGS_$(SAN)),)
$(error SAN is address, undefined or thread, not '$(SAN)')
endif
endif

# --- what needs no flags runs without pkg-config and libfuse; only manuals want scdoc ---
NO_CONFIG := help clean deps deps-test deps-real deps-lint demo demo-rl test test-sanitizers fuzz test-real test-frameworks test-gpu mutate campaign soak deaths bench bench-gpu gpu-bundle format lint uninstall dist deb wheel image test-packages deps-packages
ifneq ($(filter-out $(NO_CONFIG),$(or $(MAKECMDGOALS),all)),)
PACKAGES := libmicrohttpd gnutls libcurl jansson libxxhash libzstd libzmq libsodium
LACKING := $(shell pkg-config --print-errors --exists fuse3 $(if $(filter all man install,$(or $(MAKECMDGOALS),all)),scdoc) $(PACKAGES) 2>&1 || echo pkg-config failed)
$(if $(LACKING),$(error $(LACKING); as root or with sudo, `make deps` installs what is missing))
-include $(TOP)/libfuse/config.mk
PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES))
PKG_LIBS := $(shell pkg-config --libs $(PACKAGES))
endif

WARN := -Wall -Wextra -Werror -Wno-unknown-warning-option -Wno-format-truncation -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef
CFLAGS ?= $(if $(SAN),-O1,-O2) -g
ALL_CFLAGS = -std=gnu17 -ffp-contract=off $(CFLAGS) $(WARN) -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 \
	-DWS_VERSION='"$(VERSION)"' -I. -pthread -fPIC -fvisibility=hidden $(SAN_FLAGS_$(SAN)) $(if $(SAN),-DWS_STALL_MS=20000) $(PKG_CFLAGS) $(GPU_FLAGS)
LIBS = -Wl,--as-needed $(PKG_LIBS) -pthread

ifeq ($(shell uname -m),x86_64)
FLAGS_avx2 := -mavx2 -mfma -mf16c -mbmi -mlzcnt -mpopcnt
FLAGS_avx512 := -mbmi -mlzcnt -mpopcnt -mavx512f -mavx512bw -mavx512vl -mavx512dq
endif
vector_flags = $(if $(filter %_avx2,$(1)),$(FLAGS_avx2))$(if $(filter %_avx512,$(1)),$(FLAGS_avx512))

# --- CUDA and NCCL: what is there, and what it makes of the build ---
include .ci/cuda.mk

LAYERS := transports backends/engine backends/trainer fs mount-helpers
# A floor's sources are in its rooms, up to three folders deep; its examples are programs of their own.
SRC = $(filter-out $(LEFT_OUT) backends/trainer/examples/%,$(wildcard $(foreach d,* */* */*/*,$(1)/$d.c)))
OBJ = $(patsubst %.c,$(B)/%.o,$(call SRC,$(1)))
A_transports := $(B)/libws-transports.a
A_engine := $(B)/libws-engine.a
A_trainer := $(B)/libws-trainer.a
A_fs := $(B)/libws-fs.a
BACKENDS := $(A_trainer) $(A_engine) $(A_transports)

UNIT := $(patsubst %.c,$(B)/%,$(wildcard tests/unit/test_*.c))
CONFORMANCE := $(patsubst %.c,$(B)/%,$(wildcard tests/conformance/test_*.c))
FS_TESTS := $(patsubst %.c,$(B)/%,$(wildcard tests/fs/test_*.c))
TOOLS := $(patsubst %.c,$(B)/%,$(wildcard tests/tools/*.c))
EXAMPLES := $(patsubst %.c,$(B)/%,$(wildcard backends/trainer/examples/*.c))
BENCHES := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/bench_*.c))
FUZZERS := $(patsubst tests/fuzz/%.c,$(TOP)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
# The sources of a folder that are no programs of their own (those begin with a prefix).
HELPERS = $(foreach f,$(wildcard $(1)/*.c),$(if $(filter $(2)%,$(notdir $f)),,$(B)/$(f:.c=.o)))
FIXTURES := $(call OBJ,tests/fixtures)
# What stands in for the GPU's libraries.
FAKES := $(if $(HAVE_CUDA),$(B)/tests/fakes/libcuda.so.1) $(if $(HAVE_NCCL),$(B)/tests/fakes/libnccl.so.2)

# What was cut off in the middle is not taken for made.
.DELETE_ON_ERROR:
.PHONY: all
all: $(B)/wsync $(B)/libwsync.so $(B)/libwsync.a $(B)/wsync.pc $(if $(SAN),,man $(TOP)/compile_commands.json) ## build everything but the tests

$(TOP)/libfuse/config.mk: .ci/libfuse
	$(Q).ci/libfuse $(TOP)/libfuse

# --- what a build was made with: a file that changes only when its text does ---
.PHONY: FORCE
$(B)/.flags: TEXT = $(CC) $(ALL_CFLAGS) $(FUSE_CFLAGS)
$(B)/.commit: TEXT = $(VERSION)$(addprefix +,$(COMMIT)) $(GPU_RELEASES)
$(B)/.prefix: TEXT = $(PREFIX) $(LIBDIR) $(INCLUDEDIR)
$(TOP)/.charts: TEXT = $(CHARTS)
$(TOP)/.kernels: TEXT = $(HAVE_NVCC) $(NVCC_FLAGS)
$(B)/.flags $(B)/.commit $(B)/.prefix $(TOP)/.kernels $(TOP)/.charts: FORCE
	@mkdir -p $(@D)
	@echo '$(subst ','\'',$(TEXT))' | cmp -s - $@ || echo '$(subst ','\'',$(TEXT))' >$@

# --- objects and archives ---
$(B)/%.o: %.c $(TOP)/libfuse/config.mk $(B)/.flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(ALL_CFLAGS) $(if $(filter fs/% mount-helpers/% tests/%,$<),$(FUSE_CFLAGS)) \
		$(call vector_flags,$*) $(if $(filter transports/% tests/%,$<),$(gpu_headers)) $(EXTRA) -MMD -MP -c $< -o $@
$(B)/mount-helpers/cli/version.o: $(B)/.commit
$(B)/mount-helpers/cli/version.o: EXTRA = -UWS_VERSION -DWS_VERSION='"$(VERSION)$(addprefix +,$(COMMIT))"' $(GPU_RELEASES)

# The kernels, as bytes; with no nvcc the object says that there are none.
ifneq ($(HAVE_NVCC),)
$(FATBIN): transports/device/kernels/kernels.cu $(TOP)/.kernels
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(HAVE_NVCC) $(NVCC_FLAGS) -MD -MP -MF $(@:.fatbin=.d) -MT $@ -o $@ $<
endif
$(B)/transports/device/kernels/fatbin.o: $(FATBIN) $(TOP)/.kernels
$(B)/transports/device/kernels/fatbin.o: EXTRA = $(if $(FATBIN),-DWS_FATBIN='"$(FATBIN)"')

# The web page, one file; its charts want chart.js (MIT licence, Debian's libjs-chart.js), without which it has tables only.
PAGE := $(TOP)/page
CHARTS := $(wildcard /usr/share/javascript/chart.js/chart.min.js)
$(PAGE)/page.html: .ci/page $(wildcard transports/http/page/page.*) $(CHARTS) $(TOP)/.charts
	$(call say,GEN,$@).ci/page transports/http/page $(PAGE) $(CHARTS)
$(addsuffix /transports/http/page/page.o,$(B) $(TOP)/fuzz): $(PAGE)/page.html
$(addsuffix /transports/http/page/page.o,$(B) $(TOP)/fuzz): EXTRA = -DWS_PAGE_FILE='"$(PAGE)/page.html"' -DWS_PAGE_CSP_FILE='"$(PAGE)/page_csp.h"'

# What a trainer computes while the benchmarks offload.
ifneq ($(HAVE_NVCC),)
$(B)/tests/bench/matmul.fatbin: tests/bench/matmul.cu $(TOP)/.kernels
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(HAVE_NVCC) $(NVCC_FLAGS) -o $@ $<
$(B)/tests/bench/bench_gpu_offload.o: $(B)/tests/bench/matmul.fatbin
$(B)/tests/bench/bench_gpu_offload.o: EXTRA = -DWS_MATMUL='"$(B)/tests/bench/matmul.fatbin"'
endif

$(A_transports): $(call OBJ,transports)
$(A_engine): $(call OBJ,backends/engine)
$(A_trainer): $(call OBJ,backends/trainer)
$(A_fs): $(call OBJ,fs)
$(A_transports) $(A_engine) $(A_trainer) $(A_fs):
	$(call say,AR,$@)rm -f $@ && ar rcs $@ $^

# Bound at its start: the resolver of later calls saves vector registers, and what a token leaves there, on stacks.
$(B)/wsync: $(call OBJ,mount-helpers) $(A_fs) $(BACKENDS)
	$(call say,LINK,$@)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -Wl,-z,relro,-z,now -o $@ $^ $(FUSE_LIBS) $(LIBS)

$(B)/libwsync.so: $(BACKENDS) backends/trainer/libwsync.map
	$(call say,LINK,$@)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libwsync.so.0 \
		-Wl,--version-script=backends/trainer/libwsync.map $(if $(SAN),,-Wl,-z,defs) -o $@ \
		-Wl,--whole-archive $(A_trainer) -Wl,--no-whole-archive $(A_engine) $(A_transports) $(LIBS)
	@ln -sf $(@F) $@.0

$(B)/libwsync.a: $(call OBJ,backends/trainer) $(call OBJ,backends/engine) $(call OBJ,transports)
	$(call say,AR,$@)rm -f $@ && ar rcs $@ $^

$(B)/wsync.pc: backends/trainer/wsync.pc.in Makefile $(B)/.prefix
	@mkdir -p $(@D)
	$(call say,GEN,$@)sed -e 's|@PREFIX@|$(PREFIX)|g; s|@LIBDIR@|$(LIBDIR)|g; s|@INCLUDEDIR@|$(INCLUDEDIR)|g; s|@VERSION@|$(VERSION)|g' $< >$@

# Commands' pages are printed by the command itself; all else is written in mount-helpers/manual.
MANUALS := $(patsubst mount-helpers/manual/%.scd,$(B)/man/%,$(wildcard mount-helpers/manual/*.scd))
.PHONY: man
man: $(B)/man/.stamp $(MANUALS)
$(B)/man/.stamp: $(B)/wsync
	@mkdir -p $(@D)
	$(call say,MAN,$(@D))set -e; $(B)/wsync help --man >$(@D)/wsync.1; \
	for c in $$($(B)/wsync help --list); do $(B)/wsync help --man $$c >$(@D)/wsync-$$c.1; done; touch $@
$(MANUALS): $(B)/man/%: mount-helpers/manual/%.scd
	@mkdir -p $(@D)
	$(call say,MAN,$@)scdoc <$< >$@.part && mv $@.part $@

DATABASE = $(foreach d,$(LAYERS) tests,$(call SRC,$(d))) $(wildcard backends/trainer/examples/*.c)
$(TOP)/compile_commands.json: Makefile .ci/cuda.mk $(B)/.flags $(DATABASE)
	@mkdir -p $(@D)
	$(call say,GEN,$@){ echo '['; sep=; for f in $(DATABASE); do \
		case $$f in *_avx2.c) v='$(FLAGS_avx2)';; *_avx512.c) v='$(FLAGS_avx512)';; \
		backends/trainer/examples/*) v=-Ibackends/trainer;; *) v=;; esac; \
		printf '%s{"directory":"%s","file":"%s","command":"%s"}\n' "$$sep" "$(CURDIR)" "$$f" \
		"$(subst ",\\\",$(CC) $(ALL_CFLAGS) $(GPU_RELEASES) $(gpu_headers) $(FUSE_CFLAGS)) $$v -c $$f"; sep=,; done; echo ']'; } >$@

# --- tests ---
.PHONY: test-programs
test-programs: $(UNIT) $(CONFORMANCE) $(FS_TESTS) $(TOOLS) $(FAKES) $(EXAMPLES) $(B)/wsync ## build the tests' programs

link_test = $(call say,LINK,$@)$(CC) $(ALL_CFLAGS) -o $@ $^ $(1) $(LIBS) -lcmocka -lm
$(UNIT): $(B)/%: $(B)/%.o $(FIXTURES) $(BACKENDS)
	$(call link_test)
$(CONFORMANCE): $(B)/%: $(B)/%.o $(call HELPERS,tests/conformance,test_) $(FIXTURES) $(BACKENDS)
	$(call link_test)
$(FS_TESTS): $(B)/%: $(B)/%.o $(FIXTURES) $(A_fs) $(BACKENDS)
	$(call link_test,$(FUSE_LIBS))
$(TOOLS): $(B)/%: $(B)/%.o $(FIXTURES) $(A_fs) $(BACKENDS)
	$(call link_test,$(FUSE_LIBS) $(shell pkg-config --libs liburing))
$(BENCHES): $(B)/%: $(B)/%.o $(call HELPERS,tests/bench,bench_) $(call HELPERS,tests/conformance,test_) $(FIXTURES) $(A_fs) $(BACKENDS)
	$(call link_test,$(FUSE_LIBS))

# What tests/compat runs beside this release: NAME COMMIT.
.PHONY: old-releases
old-releases: $(TOP)/libfuse/config.mk ## build the releases of before that the tests of compatibility run, once
	$(Q)tests/compat/build v0.1.0 14cbeb8
	$(Q)tests/compat/build v0.2.0-dev.586 4649a388

# They stay in the process once they were opened: their threads run on.
$(FAKES): $(B)/tests/fakes/config.o
$(B)/tests/fakes/libcuda.so.1: $(patsubst %.c,$(B)/%.o,$(wildcard tests/fakes/fake_*.c))
$(B)/tests/fakes/libnccl.so.2: $(patsubst %.c,$(B)/%.o,$(wildcard tests/fakes/nccl_*.c))
$(FAKES):
	$(call say,LINK,$@)$(CC) $(ALL_CFLAGS) -shared -Wl,-soname,$(@F) -Wl,-z,nodelete -o $@ $^ -pthread

# As a user builds them: the installed header's name, the shared library, nothing else of this tree.
$(EXAMPLES): $(B)/%: %.c $(B)/libwsync.so backends/trainer/wsync.h
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -std=c11 $(CFLAGS) $(WARN) $(SAN_FLAGS_$(SAN)) -Ibackends/trainer -o $@ $< -L$(B) -lwsync -Wl,-rpath,$(abspath $(B)) \
		$(if $(SAN),$(LIBS))

# The fuzzers have objects of their own, by clang; only what parses is in them.
FUZZ_FLAGS = -std=gnu17 -O1 -g -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DWS_VERSION='"$(VERSION)"' -DWS_NO_VECTOR -I. -pthread $(PKG_CFLAGS) $(GPU_FLAGS) $(gpu_headers)
FUZZED := $(patsubst %.c,$(TOP)/fuzz/%.o,$(call SRC,transports) $(call SRC,backends/engine) \
	$(foreach d,api tensor skyrl agent/fleet agent/core,$(call SRC,backends/trainer/$d)) backends/trainer/agent/saved/saved_text.c \
	$(foreach d,store engines,$(call SRC,fs/$d)) fs/switch/settings.c fs/switch/needed.c fs/switch/quarantine.c fs/control/config_file.c)
$(TOP)/fuzz/%.o: %.c $(B)/.flags
	@mkdir -p $(@D)
	$(call say,CLANG,$<)$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined $(EXTRA) -MMD -MP -c $< -o $@
$(FUZZERS): $(TOP)/fuzz/%: $(TOP)/fuzz/tests/fuzz/%.o $(FUZZED)
	$(call say,FUZZ,$@)$(CLANG) -fsanitize=fuzzer,address,undefined -o $@ $^ $(LIBS)
.PHONY: fuzzers
fuzzers: $(FUZZERS)

.PHONY: deps deps-test deps-real deps-lint demo demo-rl test test-sanitizers fuzz test-real test-frameworks test-gpu mutate bench bench-gpu gpu-bundle campaign soak deaths
deps: ## install what the build needs (Debian packages)
	$(Q).ci/deps build
deps-test:
	$(Q).ci/deps test
deps-real:
	$(Q).ci/deps real
deps-lint:
	$(Q).ci/deps lint
demo: deps-test ## install what it needs, build, run the whole life of a model
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all
	$(Q)WSYNC=$(CURDIR)/$(B)/wsync BUILD=$(CURDIR)/$(TOP) PYTHON=$$(.ci/python) mount-helpers/demo/demo.sh
demo-rl: deps-real ## fetch vLLM and torch (several GB, once), build, train a tiny model with them for real (ARGS=--help)
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all
	$(Q)WSYNC=$(CURDIR)/$(B)/wsync BUILD=$(CURDIR)/$(TOP) $$(.ci/python real) mount-helpers/demo/demo-rl.py $(ARGS)
test: deps-test ## install what it needs, build, pass the tests
	$(Q)tests/run
test-sanitizers: deps-test ## the tests again with the address, undefined and thread sanitizers (SAN=one of them)
	$(Q)tests/run $(or $(SAN),address thread)
fuzz: deps-test ## the fuzzers, for FUZZ_SECONDS (60)
	$(Q)tests/run fuzz
test-real: deps-real ## fetch real engines and trainers (several GB, once), build, test with them on tiny models
	$(Q)tests/run real
test-frameworks: FRAMEWORK = $(or $(ARGS),megatron)
test-frameworks: ## published set-ups of slime, verl and NeMo-RL, cut to tiny sizes, against what their own gather gives (ARGS=megatron); ARGS=verl, ray, openrlhf: wsync's modules in those
	$(Q).ci/deps $(FRAMEWORK)
	$(Q)tests/run frameworks/test_$(FRAMEWORK)
test-gpu: deps-test ## the tests of GPUs on this machine's GPU instead of the stand-in driver
	$(Q)TEST_GPU=1 tests/run gpu
bench-gpu: deps-test ## what a GPU does: the benchmarks named bench_gpu_*
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all bench-programs
	$(Q)tests/bench/run gpu
gpu-bundle: ## build/gpu: tests and benchmarks of GPUs with their libraries, for a machine where nothing can be installed
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all test-programs bench-programs
	$(Q)tests/gpu_bundle $(TOP)/gpu
mutate: deps-test ## change the code in one place at a time and look whether a test fails (ARGS=part of a file's name)
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all test-programs
	$(Q)tests/mutate $(ARGS)
soak: deps-test ## versions for hours, with switches and upgrades: what grows, and whether every byte is right (SECONDS, OTHER, UPGRADE)
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all test-programs
	$(Q)SECONDS=$(or $(SECONDS),7200) $$(.ci/python) tests/kill/soak.py
campaign: deps-test ## kill, stop, cut off everything at random for half an hour, read meanwhile, see it heal (CAMPAIGN_SECONDS, CAMPAIGN_SEED, SAN)
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all test-programs
	$(Q)SAN=$(SAN) nice tests/kill/campaign.py
deaths: deps-test ## kill the daemon of a supervised mount a thousand times: how long who uses it waits (KILLS, PUBLISH, TAKEOVER, ELEMENTS)
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all test-programs
	$(Q)KILLS=$(or $(KILLS),1000) $$(.ci/python) tests/kill/deaths.py
bench: deps-test ## measure; prints ratios and writes build/bench.json
	$(Q)$(MAKE) --no-print-directory -j$$(nproc) all bench-programs
	$(Q)tests/bench/run
.PHONY: bench-programs
bench-programs: $(BENCHES) $(TOOLS)

# --- install ---
.PHONY: install uninstall
INSTALLED = $(BINDIR)/wsync $(SBINDIR)/mount.wsync $(INCLUDEDIR)/wsync.h $(LIBDIR)/libwsync.a \
	$(LIBDIR)/libwsync.so $(LIBDIR)/libwsync.so.0 $(LIBDIR)/libwsync.so.$(VERSION) $(LIBDIR)/pkgconfig/wsync.pc \
	$(COMPLETIONDIR)/wsync $(ZSHDIR)/_wsync $(FISHDIR)/wsync.fish $(addprefix $(UNITDIR)/,$(notdir $(wildcard mount-helpers/systemd/*.service))) \
	$(addprefix $(PREFIX)/share/wsync/,$(patsubst mount-helpers/%,%,$(wildcard mount-helpers/systemd/*.conf mount-helpers/kubernetes/* mount-helpers/prometheus/* mount-helpers/slurm/*))) \
	$(MANDIR)/man1/wsync.1 $(MANDIR)/man1/wsync-*.1 $(MANDIR)/man5/wsync-*.5 $(MANDIR)/man7/wsync.7 $(MANDIR)/man7/wsync-*.7 \
	$(MANDIR)/man8/mount.wsync.8
install: all man ## install command, mount helper, library, manual pages (PREFIX, DESTDIR; with PREFIX=~/.local no root is needed)
	install -Dm755 $(B)/wsync $(DESTDIR)$(BINDIR)/wsync
	install -d $(DESTDIR)$(SBINDIR)
	ln -sf $(BINDIR)/wsync $(DESTDIR)$(SBINDIR)/mount.wsync
	install -Dm644 backends/trainer/wsync.h $(DESTDIR)$(INCLUDEDIR)/wsync.h
	install -Dm755 $(B)/libwsync.so $(DESTDIR)$(LIBDIR)/libwsync.so.$(VERSION)
	ln -sf libwsync.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libwsync.so.0
	ln -sf libwsync.so.0 $(DESTDIR)$(LIBDIR)/libwsync.so
	install -Dm644 $(B)/libwsync.a $(DESTDIR)$(LIBDIR)/libwsync.a
	install -Dm644 $(B)/wsync.pc $(DESTDIR)$(LIBDIR)/pkgconfig/wsync.pc
	install -Dm644 -t $(DESTDIR)$(MANDIR)/man1 $(B)/man/*.1
	install -Dm644 -t $(DESTDIR)$(MANDIR)/man5 $(filter %.5,$(MANUALS))
	install -Dm644 -t $(DESTDIR)$(MANDIR)/man7 $(filter %.7,$(MANUALS))
	install -d $(DESTDIR)$(MANDIR)/man8
	ln -sf ../man1/wsync-mount.1 $(DESTDIR)$(MANDIR)/man8/mount.wsync.8
	install -d $(DESTDIR)$(UNITDIR)
	for u in mount-helpers/systemd/*.service; do sed 's|=wsync |=$(BINDIR)/wsync |; s|=-wsync |=-$(BINDIR)/wsync |' $$u | install -m644 /dev/stdin $(DESTDIR)$(UNITDIR)/$${u##*/} || exit; done
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/wsync/systemd mount-helpers/systemd/*.conf
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/wsync/kubernetes mount-helpers/kubernetes/*
	install -Dm755 -t $(DESTDIR)$(PREFIX)/share/wsync/slurm mount-helpers/slurm/*
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/wsync/prometheus mount-helpers/prometheus/*
	install -Dm644 mount-helpers/completions/wsync.bash $(DESTDIR)$(COMPLETIONDIR)/wsync
	install -Dm644 -t $(DESTDIR)$(ZSHDIR) mount-helpers/completions/_wsync
	install -Dm644 -t $(DESTDIR)$(FISHDIR) mount-helpers/completions/wsync.fish
	$(if $(DESTDIR),,@[ "$$(id -u)" != 0 ] || ldconfig)
uninstall: ## remove what install put there
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	@# v0.1.0 put its helper into /sbin whatever the prefix was: only where it leads to what was just removed
	@old=$(DESTDIR)/sbin/mount.wsync; if [ "$$(readlink $$old 2>/dev/null)" = $(BINDIR)/wsync ]; then rm -f $$old || true; fi

# --- packages ---
.PHONY: dist deb wheel image abi test-packages deps-packages
dist: ## the source release, build/dist/wsync-VERSION.tar.gz
	$(Q)mount-helpers/package/dist
wheel: ## the Python package for any Linux with glibc 2.36, into build/wheel
	$(Q)mount-helpers/package/wheel
deb: ## Debian packages, into build/deb (ARGS=bookworm: in a root of that suite; else on this machine)
	$(Q)mount-helpers/package/deb $(ARGS)
image: ## an OCI image with the command, into build/image (ARGS=trixie: the suite whose packages are in it)
	$(Q)mount-helpers/package/image $(ARGS)
abi: all old-releases ## is libwsync compatible with that of the last release?
	$(Q).ci/abi
test-packages: deps-test deps-packages ## build the packages, try them in clean roots (minutes; fetches Debian roots and PyPI's packages)
	$(Q)tests/run packages/
deps-packages:
	$(Q).ci/deps packages

# --- care ---
C_FILES = $(wildcard $(foreach d,$(LAYERS) tests,$(foreach e,c h cu,$(d)/*.$e $(d)/*/*.$e $(d)/*/*/*.$e)))
SHELL_FILES = .ci/abi .ci/deps .ci/libfuse .ci/python .ci/run $(filter-out %/dist-info,$(wildcard mount-helpers/package/*)) $(wildcard mount-helpers/debian/wsync.p*) tests/compat/build $(wildcard mount-helpers/*/*.sh tests/*.sh tests/*/*.sh)
.PHONY: format lint lint-arrows lint-format lint-tidy lint-cppcheck lint-shell clean help
format: deps-lint ## format all C files
	$(Q)clang-format -i $(C_FILES)
lint: deps-lint ## includes between rooms, clang-format, clang-tidy, cppcheck and shellcheck: all of them, then whether all were content
	$(Q)$(MAKE) --no-print-directory -k lint-arrows lint-format lint-tidy lint-cppcheck lint-shell
lint-arrows:
	$(call say,ARROWS,all).ci/arrows
lint-format:
	$(call say,FORMAT,check)clang-format --dry-run -Werror $(C_FILES)
lint-tidy: $(TOP)/compile_commands.json
	$(call say,TIDY,all)printf '%s\n' $(filter-out %_avx512.c %_avx2.c,$(DATABASE)) | \
		xargs -P $$(nproc) -n 4 clang-tidy --quiet -p $(TOP) 2>$(TOP)/tidy.log
lint-cppcheck: $(TOP)/compile_commands.json
	$(call say,CPPCHECK,all)cppcheck --quiet --error-exitcode=1 --inline-suppr --enable=warning,performance,portability \
		--suppressions-list=.cppcheck --std=c11 -I. -D_GNU_SOURCE -D__linux__ -D__x86_64__ -j $$(nproc) $(LAYERS)
lint-shell:
	$(call say,SHELL,all)shellcheck -S warning $(SHELL_FILES)
clean: ## remove what was built, keep fetched libraries and the Python environments
	rm -rf $(filter-out $(TOP)/libfuse $(TOP)/venv $(TOP)/venv-real $(TOP)/venv-megatron $(TOP)/demo,$(wildcard $(TOP)/*))
help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' Makefile
	@echo '  variables: SAN=address|undefined|thread, V=1, ARGS (of demo-rl, mutate and test-frameworks), PREFIX, DESTDIR, CFLAGS'

-include $(shell find $(B) -name '*.d' -not -path '*/libfuse/*' -not -path '*/compat/*' 2>/dev/null)
-include $(FATBIN:.fatbin=.d)
