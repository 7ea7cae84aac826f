package sim

// A result is a CUresult or a cudaError_t; where both have a meaning they have
// had the same number since CUDA 10.1.
type result uint32

// The results that the simulation gives. Numbers: cuda.h, driver_types.h.
const (
	success                  result = 0
	errInvalidValue          result = 1
	errOutOfMemory           result = 2
	errNotInitialized        result = 3
	errDeinitialized         result = 4
	errInvalidConfiguration  result = 9  // runtime
	errInvalidPitch          result = 12 // runtime
	errInvalidSymbol         result = 13 // runtime
	errInvalidDevicePointer  result = 17 // runtime
	errInvalidDirection      result = 21 // runtime
	errMissingConfiguration  result = 52 // runtime
	errInvalidDeviceFunction result = 98 // runtime
	errNoDevice              result = 100
	errInvalidDevice         result = 101
	errInvalidImage          result = 200
	errInvalidContext        result = 201
	errMapFailed             result = 205
	errNoBinary              result = 209
	errInvalidPTX            result = 218
	errUnsupportedPTX        result = 222
	errFileNotFound          result = 301
	errInvalidHandle         result = 400
	errIllegalState          result = 401
	errNotFound              result = 500
	errNotReady              result = 600
	errIllegalAddress        result = 700
	errOutOfResources        result = 701
	errTimeout               result = 702
	errPeerEnabled           result = 704
	errPeerNotEnabled        result = 705
	errPrimaryActive         result = 708
	errAssert                result = 710
	errHostRegistered        result = 712
	errHostNotRegistered     result = 713
	errStackError            result = 714
	errIllegalInstruction    result = 715
	errMisaligned            result = 716
	errLaunchFailed          result = 719
	errCooperativeTooLarge   result = 720
	errNotPermitted          result = 800
	errNotSupported          result = 801
	errCaptureUnsupported    result = 900
	errCaptureInvalidated    result = 901
	errCaptureMerge          result = 902
	errCaptureUnmatched      result = 903
	errCaptureUnjoined       result = 904
	errCaptureIsolation      result = 905
	errCaptureImplicit       result = 906
	errCapturedEvent         result = 907
	errCaptureWrongThread    result = 908
	errGraphUpdate           result = 910
	errUnknown               result = 999
)
