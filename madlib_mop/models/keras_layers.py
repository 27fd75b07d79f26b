"""The allow-list of architectures. Tables only; a test compares them with the installed Keras."""

import re
from typing import Any

Node = dict[str, Any]  # a model, layer or other object as Keras serialises it: class_name, config, module and others

MODELS = {
    "Functional": "keras.src.models.functional",
    "Sequential": "keras",
}

LAYERS = frozenset(
    # defence: reviewed-layers = ["Dense", "AnyLayerOfKeras"]
    """
    Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
    AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add AdditiveAttention AlphaDropout Attention
    AutoContrast Average AveragePooling1D AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D
    BatchNormalization Bidirectional CategoryEncoding CenterCrop Concatenate
    ContrastLimitedAdaptiveHistogramEqualization Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D
    Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D Convolution1DTranspose Convolution2D
    Convolution2DTranspose Convolution3D Convolution3DTranspose Cropping1D Cropping2D Cropping3D CutMix Dense
    DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Equalization Flatten GRU
    GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention HashedCrossing
    Hashing Identity InputLayer LSTM LSTMCell LayerNormalization LeakyReLU Masking MaxNumBoundingBoxes MaxPool1D
    MaxPool2D MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum MixUp
    MultiHeadAttention Multiply Normalization PReLU Permute Pipeline RMSNormalization RNN RandAugment
    RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop RandomElasticTransform
    RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective
    RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom
    ReLU RepeatVector Rescaling Reshape Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D SeparableConv2D
    SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax Solarization SpatialDropout1D
    SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells Subtract TimeDistributed
    UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
    """.split()
)

# Layers of Keras that are not supported, with the reason that a user reads.
REFUSED_LAYERS = {
    "AugMix": "it draws from Python's global generator, so a run could not be repeated with the same bits",
    "FlaxLayer": "it runs code that is not Keras'",
    "IntegerLookup": "it can read files of the server as its vocabulary",
    "InputSpec": "it is not a layer",
    "JaxLayer": "it runs code that is not Keras'",
    "Lambda": "it contains Python code",
    "Layer": "it is the base class of all layers and has no effect",
    "StringLookup": "it can read files of the server as its vocabulary",
    "TFSMLayer": "it loads a program from a file of the server",
    "TextVectorization": "it can read files of the server as its vocabulary",
    "TorchModuleWrapper": "it unpickles data, which can run any code",
    "Wrapper": "it is the base class of other layers and has no effect",
    # Keras 2 only.
    "CuDNNGRU": "Keras 3 has no such layer; GRU does the same",
    "CuDNNLSTM": "Keras 3 has no such layer; LSTM does the same",
    "FeatureSpace": "it can read files of the server as its vocabulary",
    "LocallyConnected1D": "Keras 3 has no such layer",
    "LocallyConnected2D": "Keras 3 has no such layer",
    "Merge": "Keras 1 layers cannot be converted",
    "RandomHeight": "Keras 3 has no such layer",
    "RandomWidth": "Keras 3 has no such layer",
    "SlicingOpLambda": "Keras 2 operations outside of layers cannot be converted",
    "TFOpLambda": "Keras 2 operations outside of layers cannot be converted",
    "TensorFlowOpLayer": "Keras 2 operations outside of layers cannot be converted",
    # Forms of serialised code and data.
    "__lambda__": "it contains Python code",
    "__typespec__": "TensorFlow objects cannot be part of an architecture",
    "__bytes__": "bytes cannot be part of an architecture",
    "__tensor__": "tensors cannot be part of an architecture; write a list of numbers",
}

# Operations between layers of a functional model (`x + y`, `keras.ops.relu(x)`, `x[:, 0]`): by module. Keras writes the
# masks of `Embedding`, `Masking` and merging layers as Any, LogicalOr, NotEqual and ZerosLike.
OPERATIONS = {
    **dict.fromkeys(
        """
        Abs Absolute Add Any Average BroadcastTo Clip Concatenate Cos Divide Dot Einsum Exp ExpandDims Expm1 Flip Floor
        GetItem Log Log10 Log1p Log2 LogicalOr Matmul Max Maximum Mean Min Minimum Moveaxis Multiply Negative NotEqual
        Outer Pad Power Prod Ravel Reciprocal Repeat Reshape Roll Round Sign Sin Sqrt Square Squeeze Stack Std Subtract
        Sum Swapaxes Tanh Tensordot Tile Transpose TrueDivide Var ZerosLike
        """.split(),
        "keras.src.ops.numpy",
    ),
    **dict.fromkeys(
        """
        AveragePool Celu Elu Gelu Glu HardSigmoid HardSilu HardTanh LeakyRelu LogSigmoid LogSoftmax MaxPool Normalize
        Relu Relu6 Selu Sigmoid Silu Softmax Softplus Softsign Squareplus
        """.split(),
        "keras.src.ops.nn",
    ),
}

INITIALIZERS = frozenset(
    """
    Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity IdentityInitializer LecunNormal LecunUniform Ones
    Orthogonal OrthogonalInitializer RandomNormal RandomUniform STFT STFTInitializer TruncatedNormal VarianceScaling
    Zeros constant glorot_normal glorot_uniform he_normal he_uniform identity lecun_normal lecun_uniform normal one
    ones orthogonal random_normal random_uniform stft truncated_normal uniform variance_scaling zero zeros
    """.split()
)
REGULARIZERS = frozenset("L1 L1L2 L2 OrthogonalRegularizer l1 l1l2 l2 orthogonal_regularizer".split())
CONSTRAINTS = frozenset("MaxNorm MinMaxNorm NonNeg UnitNorm max_norm min_max_norm non_neg unit_norm".split())
ACTIVATIONS = frozenset(
    """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear
    log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus
    sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold
    """.split()
)
# Defined in `build`: Keras 2's hard_sigmoid. Keras 3 uses that name for another function.
KERAS_2_HARD_SIGMOID = "keras2_hard_sigmoid"
DTYPE_POLICIES = frozenset(("DTypePolicy", "FloatDTypePolicy"))

# Allowed names by the last part of a configuration's key, and Keras' module of the classes among them.
BY_KEY = {
    "activation": (ACTIVATIONS | {KERAS_2_HARD_SIGMOID}, "keras.activations"),
    "initializer": (INITIALIZERS, "keras.initializers"),
    "regularizer": (REGULARIZERS, "keras.regularizers"),
    "constraint": (CONSTRAINTS, "keras.constraints"),
}

OWN_MODULE = re.compile(r"(keras|tf_keras|tensorflow\.keras|tensorflow\.python\.keras)(\.[A-Za-z0-9_]+)*\Z")
