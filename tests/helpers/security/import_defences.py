"""The defences, in the format of ``defences.py``, of imported files."""

from tests.helpers.security.defence import Defence

_OF_ARCHIVES = "tests/unit/exports/test_archives.py::"
_OF_FILES = "tests/unit/imports/test_keras_files.py::"
_OF_EXPORTS = "tests/unit/client/test_damaged_exports.py::"
_OF_TRAINER = "tests/unit/trainer/test_importing.py::"
_OF_SIGNED = "tests/unit/driver/test_import_signatures.py::"
_HOSTILE = f"{_OF_TRAINER}test_hostile_files_are_refused_before_a_number_is_read"
_SHARED = f"{_OF_EXPORTS}test_texts_of_weights_that_are_all_the_same_bytes_are_not_copied"

DEFENCES_OF_IMPORTS = (
    Defence(
        "named-pickles",
        "a pickle is named, and not opened",
        ("tests/unit/imports/test_kinds.py::test_a_pickle_is_named_and_not_opened",),
    ),
    Defence(
        "members-of-archives",
        "an archive has the members of a Keras file only",
        (_OF_ARCHIVES + "test_other_names_are_refused",),
    ),
    Defence(
        "paths-in-archives",
        "no member of an archive has a path that leaves it",
        (_OF_ARCHIVES + "test_other_names_are_refused",
         "tests/unit/exports/test_directory.py::test_no_file_leaves_the_directory"),
    ),
    Defence(
        "links-in-archives",
        "no member of an archive is a link",
        (_OF_ARCHIVES + "test_members_that_keras_does_not_write_are_refused",),
    ),
    Defence(
        "longer-members",
        "a member that has more bytes than it says is not inflated further",
        (_OF_ARCHIVES + "test_headers_that_lie_are_one_clear_error",),
    ),
    Defence(
        "inflated-members",
        "a member that says that it expands very much is not inflated",
        (_OF_ARCHIVES + "test_ten_gigabytes_of_zeros_are_not_inflated",),
    ),
    Defence(
        "size-of-a-member",
        "a member has a largest size",
        (_OF_ARCHIVES + "test_members_that_keras_does_not_write_are_refused",),
    ),
    Defence(
        "overlapping-members",
        "the bytes of an archive belong to one member",
        (_OF_ARCHIVES + "test_members_that_overlap_are_refused",),
    ),
    Defence(
        "names-of-members",
        "a name stands for one member",
        (_OF_ARCHIVES + "test_an_archive_that_contradicts_itself_is_one_clear_error",),
    ),
    Defence(
        "number-of-members",
        "the number of members is limited before their names are read",
        (_OF_ARCHIVES + "test_many_members_are_refused_before_their_names_are_read",),
    ),
    Defence(
        "architecture-of-an-import",
        "the architecture of an imported file is checked",
        (_OF_FILES + "test_dangerous_architectures_are_refused_and_nothing_runs",),
    ),
    Defence(
        "hdf5-weights",
        "the weights of a Keras file are HDF5",
        (_OF_FILES + "test_what_is_no_keras_file_is_one_clear_error",),
    ),
    Defence(
        "overlapping-tensors",
        "tensors of a safetensors file do not overlap",
        ("tests/unit/exports/test_tensors.py::test_a_damaged_header_is_one_clear_error",),
    ),
    Defence(
        "hdf5-links",
        "an HDF5 file has no links to other places and files",
        (f"{_HOSTILE}[soft link]", f"{_HOSTILE}[external link]"),
    ),
    Defence(
        "hdf5-layouts",
        "an array is not put together from other files",
        (f"{_HOSTILE}[virtual dataset]",),
    ),
    Defence(
        "hdf5-external-files",
        "an array is not in another file",
        (f"{_HOSTILE}[external storage]",),
    ),
    Defence(
        "hdf5-filters",
        "an array has no filters",
        (f"{_HOSTILE}[gzip]",),
    ),
    Defence(
        "hdf5-numbers",
        "an array consists of plain numbers",
        (f"{_HOSTILE}[objects]", f"{_HOSTILE}[compound]"),
    ),
    Defence(
        "hdf5-bytes",
        "an array has the bytes that it says",
        (f"{_HOSTILE}[gigabytes that are not there]",),
    ),
    Defence(
        "hdf5-type",
        "the type of an array in an HDF5 file is one text",
        (f"{_SHARED}[type of an array]",),
    ),
    Defence(
        "hdf5-names",
        "a name in an HDF5 file has a limited length",
        (f"{_SHARED}[name of each layer]",),
    ),
    Defence(
        "no-legacy-weights",
        "names of layers in an HDF5 file are not read at the client",
        (_OF_EXPORTS + "test_names_of_layers_are_not_read_at_the_client",),
    ),
    Defence(
        "digits-of-a-class",
        "a number of a signature is not written out with more digits than PostgreSQL has",
        (_OF_EXPORTS + "test_a_class_of_very_many_digits_is_not_written_out",),
    ),
    Defence(
        "hdf5-circles",
        "a group of an HDF5 file has one place",
        (f"{_HOSTILE}[circle]",),
    ),
    Defence(
        "size-of-a-network",
        "an imported network is measured before there is memory for it",
        (_OF_TRAINER + "test_weights_that_no_value_holds_are_refused_without_memory_for_them",),
    ),
    Defence(
        "memory-of-a-network",
        "a table of parts that says any size of its weights makes the client take no memory for them",
        ("tests/unit/client/test_handles.py::test_weights_in_a_view_that_says_any_size_take_no_memory",),
    ),
    Defence(
        "weights-of-a-network",
        "an architecture that its file has not the weights of gets no memory",
        (_OF_EXPORTS + "test_one_changed_number_of_an_architecture_takes_no_memory",),
    ),
    Defence(
        "containers-of-json",
        "a document with very many lists and objects is not parsed",
        ("tests/unit/models/test_architecture.py::test_very_many_empty_objects_are_refused_before_they_are_read",),
    ),
    Defence(
        "size-of-a-text",
        "a text beside an exported model has a largest size",
        (_OF_EXPORTS + "test_texts_beside_a_model_have_a_largest_size",),
    ),
    Defence(
        "end-of-a-varint",
        "a number of a Protobuf message has an end",
        (_OF_EXPORTS + "test_a_number_of_many_bytes_in_an_onnx_file_is_one_clear_error",),
    ),
    Defence(
        "fields-of-a-signature",
        "the fields of a signature have the types that they should have",
        (_OF_SIGNED + "test_a_damaged_signature_is_one_clear_error",),
    ),
    Defence(
        "model-of-a-signature",
        "a signature belongs to the model that it came with",
        (_OF_SIGNED + "test_a_signature_is_checked_before_it_is_used",),
    ),
    Defence(
        "preprocessor-of-a-signature",
        "a preprocessor is the one that the signature names",
        (_OF_SIGNED + "test_a_preprocessor_must_be_the_one_that_the_signature_names",),
    ),
)
