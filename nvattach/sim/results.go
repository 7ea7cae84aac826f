package sim

import "nvtrace/nvattach/api/cuda"

// A result is a CUresult or a cudaError_t; where both have a meaning they have
// had the same number since CUDA 10.1.
type result uint32

// The results that the simulation gives.
const (
	success                  result = cuda.CUDA_SUCCESS
	errInvalidValue          result = cuda.CUDA_ERROR_INVALID_VALUE
	errOutOfMemory           result = cuda.CUDA_ERROR_OUT_OF_MEMORY
	errNotInitialized        result = cuda.CUDA_ERROR_NOT_INITIALIZED
	errDeinitialized         result = cuda.CUDA_ERROR_DEINITIALIZED
	errInvalidConfiguration  result = cuda.CudaErrorInvalidConfiguration
	errInvalidPitch          result = cuda.CudaErrorInvalidPitchValue
	errInvalidSymbol         result = cuda.CudaErrorInvalidSymbol
	errInvalidDevicePointer  result = cuda.CudaErrorInvalidDevicePointer
	errInvalidDirection      result = cuda.CudaErrorInvalidMemcpyDirection
	errMissingConfiguration  result = cuda.CudaErrorMissingConfiguration
	errInvalidDeviceFunction result = cuda.CudaErrorInvalidDeviceFunction
	errNoDevice              result = cuda.CUDA_ERROR_NO_DEVICE
	errInvalidDevice         result = cuda.CUDA_ERROR_INVALID_DEVICE
	errInvalidImage          result = cuda.CUDA_ERROR_INVALID_IMAGE
	errInvalidContext        result = cuda.CUDA_ERROR_INVALID_CONTEXT
	errMapFailed             result = cuda.CUDA_ERROR_MAP_FAILED
	errNoBinary              result = cuda.CUDA_ERROR_NO_BINARY_FOR_GPU
	errInvalidPTX            result = cuda.CUDA_ERROR_INVALID_PTX
	errUnsupportedPTX        result = cuda.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
	errFileNotFound          result = cuda.CUDA_ERROR_FILE_NOT_FOUND
	errInvalidHandle         result = cuda.CUDA_ERROR_INVALID_HANDLE
	errIllegalState          result = cuda.CUDA_ERROR_ILLEGAL_STATE
	errNotFound              result = cuda.CUDA_ERROR_NOT_FOUND
	errNotReady              result = cuda.CUDA_ERROR_NOT_READY
	errIllegalAddress        result = cuda.CUDA_ERROR_ILLEGAL_ADDRESS
	errOutOfResources        result = cuda.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
	errTimeout               result = cuda.CUDA_ERROR_LAUNCH_TIMEOUT
	errPeerEnabled           result = cuda.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
	errPeerNotEnabled        result = cuda.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
	errPrimaryActive         result = cuda.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE
	errAssert                result = cuda.CUDA_ERROR_ASSERT
	errHostRegistered        result = cuda.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
	errHostNotRegistered     result = cuda.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
	errStackError            result = cuda.CUDA_ERROR_HARDWARE_STACK_ERROR
	errIllegalInstruction    result = cuda.CUDA_ERROR_ILLEGAL_INSTRUCTION
	errMisaligned            result = cuda.CUDA_ERROR_MISALIGNED_ADDRESS
	errLaunchFailed          result = cuda.CUDA_ERROR_LAUNCH_FAILED
	errCooperativeTooLarge   result = cuda.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
	errNotPermitted          result = cuda.CUDA_ERROR_NOT_PERMITTED
	errNotSupported          result = cuda.CUDA_ERROR_NOT_SUPPORTED
	errCaptureUnsupported    result = cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	errCaptureInvalidated    result = cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	errCaptureMerge          result = cuda.CUDA_ERROR_STREAM_CAPTURE_MERGE
	errCaptureUnmatched      result = cuda.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
	errCaptureUnjoined       result = cuda.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
	errCaptureIsolation      result = cuda.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
	errCaptureImplicit       result = cuda.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
	errCapturedEvent         result = cuda.CUDA_ERROR_CAPTURED_EVENT
	errCaptureWrongThread    result = cuda.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
	errGraphUpdate           result = cuda.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
	errUnknown               result = cuda.CUDA_ERROR_UNKNOWN
)
