/*
 * What the shim and nvtrace say to each other, over a unix socket of type
 * SOCK_SEQPACKET: each message is one packet, sent whole or not at all, so that
 * threads share the socket without a lock.
 *
 * wire.go holds the same in Go; a test compiles this file and compares sizes and
 * offsets. All numbers are little-endian, all structures have no holes, lengths
 * are bytes. A change of anything here raises NVT_VERSION.
 */
#ifndef NVT_WIRE_H
#define NVT_WIRE_H

#define NVT_MAGIC 0x7274766e /* "nvtr" */
#define NVT_VERSION 2

#define NVT_MAX_MESSAGE 8192 /* of a whole packet */
#define NVT_MAX_PATH 1024    /* of a path in a message; a longer one is cut at its front */
#define NVT_KEY 32	     /* of the run's key, with zeros behind a shorter one */
#define NVT_MAX_DATA 4096    /* of the name or the handles at the end of a call */
#define NVT_MAX_IMAGE (4ULL << 30)
#define NVT_HASH_PREFIX 65536 /* observe mode: how much of an image the hash covers */

/* Types of messages. The program's begin with hello; it waits for welcome. */
enum {
	NVT_HELLO = 1,
	NVT_IMAGE = 2,	 /* struct nvt_call, before the driver is called; fd 0: a sealed memfd with the image; fd 1, if present: where the verdict goes */
	NVT_CALL = 3,	 /* struct nvt_call, after the driver returned */
	NVT_GAP = 4,	 /* something that the shim could not do */
	NVT_WELCOME = 16,
	NVT_VERDICT = 17, /* on the socket that came with the image; fd 0, if present: a memfd with the replacement */
};

/* nvt_hello.libc */
enum { NVT_LIBC_OTHER = 0, NVT_LIBC_GLIBC = 1, NVT_LIBC_MUSL = 2 };

/* nvt_welcome.mode */
enum {
	NVT_OFF = 0,	 /* be silent, wrap nothing more */
	NVT_OBSERVE = 1, /* calls only: a supervisor captures the images */
	NVT_CAPTURE = 2, /* images too */
};

/* nvt_welcome.flags */
enum { NVT_REPLACE = 1 }; /* wait for a verdict on each image */

/* nvt_call.flags */
enum {
	NVT_F_FILE = 1,	      /* the image is what the path in data names */
	NVT_F_SENT = 2,	      /* NVT_CALL: an NVT_IMAGE of the same seq went before */
	NVT_F_KNOWN = 4,      /* NVT_CALL: this process (or its parent) sent the same bytes earlier */
	NVT_F_REPLACED = 8,   /* the driver was given nvtrace's image */
	NVT_F_UNREADABLE = 16, /* the image could not be read or sized */
	NVT_F_CUT = 32,	      /* data was longer */
	NVT_F_HANDLES = 64,   /* data holds 8-byte handles */
	NVT_F_UUID = 128,     /* data holds the 16 bytes of a table's id */
};

/* nvt_gap.code */
enum {
	NVT_GAP_LOST = 1,	/* count messages were not sent: nvtrace did not read in time */
	NVT_GAP_THUNKS = 2,	/* no wrapper was left for a function: detail is its number in the table */
	NVT_GAP_LAUNCHES = 3,	/* too many functions: first launches are no longer told */
	NVT_GAP_MEMORY = 4,	/* an image could not be sent: detail is the negative errno */
	NVT_GAP_TIMEOUT = 5,	/* a verdict did not come in time: the original went to the driver */
	NVT_GAP_LIBC = 6,	/* not glibc: nothing is wrapped */
	NVT_GAP_UNWRAPPED = 7,	/* a loader was handed out unwrapped; detail is its number in the table */
};

struct nvt_header {
	unsigned magic;
	unsigned short version;
	unsigned short type;
	unsigned length; /* of the whole packet */
	unsigned seq;	 /* of the call, in its process */
};

struct nvt_hello {
	struct nvt_header h;
	int pid; /* as the process itself sees it */
	unsigned libc;
	unsigned short libc_major;
	unsigned short libc_minor;
	unsigned path_len;	 /* of the executable's path, which follows */
	unsigned long long born; /* when the shim was loaded, CLOCK_MONOTONIC, ns */
	unsigned table;		 /* NVT_TABLE: which table of functions it was built with */
	unsigned pad;
	char key[NVT_KEY]; /* from the environment: only programs of the run have it */
};

struct nvt_call {
	struct nvt_header h;
	unsigned long long time; /* CLOCK_MONOTONIC at the entry, ns */
	unsigned long long dur;	 /* NVT_CALL: until the driver returned, ns */
	int tid;
	unsigned short fn; /* number in the table of functions */
	unsigned short flags;
	unsigned long long caller; /* return address */
	unsigned long long target; /* the driver's function */
	unsigned long long args[6];
	unsigned long long image;  /* address of the image, 0 none */
	unsigned long long size;   /* of the image */
	unsigned long long hashed; /* how many of its bytes hash covers */
	unsigned long long hash[2];
	unsigned long long handle; /* what came of it: module, library, function, context; graph and launch: the function */
	long long ret;
	unsigned short part;  /* of a wrapper's containers: 0 the linked one, then those of before the link */
	unsigned short parts;
	unsigned short caller_len; /* of the path of the library that called, which follows */
	unsigned short data_len;   /* of the name, path, handles or id, which follows that */
};

struct nvt_gap {
	struct nvt_header h;
	unsigned code;
	unsigned count;
	long long detail;
};

struct nvt_welcome {
	struct nvt_header h;
	unsigned mode;
	unsigned flags;
	unsigned wait_ms; /* how long a verdict or a full socket is waited for */
	unsigned pad;
};

struct nvt_verdict {
	struct nvt_header h;
	unsigned long long size; /* of the replacement; 0: keep the original */
};

#endif
